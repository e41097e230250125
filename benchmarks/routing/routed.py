"""Real router processes as the policy of a simulation.

Every request goes over HTTP through a router to the port of a modelled replica, which shows what the router has chosen.
Virtual time stands still while a request, a first token or the end of a response travels through the router. A response
is open until its virtual end, so a router has as many in flight as the model. Virtual time is never faster than the
wall clock, since a router's probes, breakers and estimates have real clocks.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx

from benchmarks.routing.engine_server import MODEL, EngineServer, stream_event
from benchmarks.routing.model import Replica
from benchmarks.routing.model import Sequence as ReplicaSequence
from benchmarks.routing.router_processes import Deployment, running_routers
from benchmarks.routing.simulation import Request
from tests.support.waiting import eventually

STANDSTILL: Final = 0.25
"""Seconds for which virtual time waits for the router at most. A request that the router holds back arrives later."""

MAX_LAG: Final = 0.05
"""Seconds by which virtual time is behind the wall clock, and which it may catch up."""

END_TIMEOUT: Final = 10.0


@dataclass(eq=False)
class _Exchange:
    """The events of a request: its response at the replica may begin and may end; the client has the first token."""

    request: Request
    may_begin: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    has_first: asyncio.Event = field(default_factory=asyncio.Event)
    client: "asyncio.Task[None] | None" = None


class Routed:
    """`seconds_behind`: how much longer the run took than it simulated."""

    def __init__(self, deployment: Deployment) -> None:
        self.name = deployment.name
        self.seconds_behind = 0.0
        self._deployment = deployment
        self._rng = random.Random(1)
        self._exchanges: dict[int, _Exchange] = {}
        self._arrivals: list[tuple[Request, int | None]] = []
        self._stack = contextlib.AsyncExitStack()
        self._origin: float | None = None  # the wall clock at the virtual time 0

    async def start(self, replicas: Sequence[Replica]) -> None:
        enter = self._stack.enter_async_context
        self._replicas = replicas
        stated = self._deployment.stated
        self._engines = [
            await enter(EngineServer(replica, partial(self._serve, index), stated=stated))
            for index, replica in enumerate(replicas)
        ]
        self._routers = await enter(running_routers(self._deployment, self._present_engines()))
        # A connection for each request: so the workers of a router share them.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        headers = {"cache-control": "no-store"}
        self._http = await enter(httpx.AsyncClient(timeout=None, trust_env=False, limits=limits, headers=headers))
        await eventually(self._all_are_known)

    async def stop(self) -> None:
        for exchange in self._exchanges.values():
            if exchange.client is not None:
                exchange.client.cancel()
        await self._stack.aclose()

    async def wait_until(self, now: float) -> None:
        wall = time.monotonic()
        if self._origin is None:
            self._origin = wall - now
        behind = wall - (self._origin + now)
        if behind > MAX_LAG:
            self.seconds_behind += behind - MAX_LAG
            self._origin += behind - MAX_LAG
        await asyncio.sleep(max(0.0, -behind))  # 0: probes are served in any case

    async def send(self, request: Request) -> None:
        exchange = self._exchanges[request.number] = _Exchange(request)
        exchange.client = asyncio.create_task(self._ask(exchange))
        await _wait_for(exchange.arrived, exchange.client, STANDSTILL)

    def arrivals(self) -> list[tuple[Request, int | None]]:
        arrived, self._arrivals = self._arrivals, []
        return arrived

    async def first_token(self, request: Request) -> None:
        exchange = self._exchanges[request.number]
        exchange.may_begin.set()
        assert exchange.client is not None
        await _wait_for(exchange.has_first, exchange.client, STANDSTILL)

    async def finished(self, request: Request) -> None:
        exchange = self._exchanges.pop(request.number)
        exchange.may_end.set()
        assert exchange.client is not None
        await asyncio.wait([exchange.client], timeout=END_TIMEOUT)
        exchange.client.cancel()

    async def replicas_changed(self) -> None:
        await self._routers.reload(self._present_engines())

    def _present_engines(self) -> dict[str, list[str]]:
        """The addresses by draft."""
        found: dict[str, list[str]] = {}
        for engine, replica in zip(self._engines, self._replicas, strict=True):
            if replica.is_present:
                found.setdefault("" if self._deployment.is_one_table else replica.draft, []).append(engine.url)
        return found

    def _all_are_known(self) -> bool:
        """Every router has the metrics of every engine; two rounds, since workers need not start at once."""
        rounds = 2 * self._deployment.routers
        present = zip(self._engines, self._replicas, strict=True)
        return all(engine.checks >= rounds for engine, replica in present if replica.is_present)

    # -- the client ---------------------------------------------------------------------------------------------------

    async def _ask(self, exchange: _Exchange) -> None:
        """The request fails unless its stream is complete."""
        request = exchange.request
        is_complete = False
        try:
            async with self._http.stream(
                "POST", f"{self._rng.choice(self._routers.urls)}/v1/chat/completions", json=body_of(request)
            ) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {") and _has_text(json.loads(line[6:])):
                        exchange.has_first.set()
                    is_complete = is_complete or line == "data: [DONE]"
        except httpx.HTTPError:
            is_complete = False
        if not exchange.arrived.is_set():
            self._arrivals.append((request, None))
            self._exchanges.pop(request.number, None)
        elif not is_complete:
            request.failed = True

    # -- the replica --------------------------------------------------------------------------------------------------

    async def _serve(self, index: int, body: dict[str, Any]) -> AsyncIterator[bytes]:
        exchange = self._exchanges[body["seed"]]
        if exchange.arrived.is_set():
            return  # the router has sent it before: a modelled replica loses none, so there is no second attempt
        exchange.arrived.set()
        request, sequence = exchange.request, exchange.request.sequence
        self._arrivals.append((request, index))
        await exchange.may_begin.wait()
        yield stream_event(request.ask.answer[:4])
        await exchange.may_end.wait()
        yield stream_event(request.ask.answer[4:], "length")
        usage = {"prompt_tokens": sequence.prompt, "completion_tokens": sequence.answer}
        usage["total_tokens"] = sequence.prompt + sequence.answer
        usage_of_prompt = {**usage, "prompt_tokens_details": {"cached_tokens": sequence.cached}}
        metrics = speculation(sequence) if self._replicas[index].draft else None
        yield stream_event(usage=usage_of_prompt, metrics=metrics)
        yield b"data: [DONE]\n\n"


def body_of(request: Request) -> dict[str, Any]:
    """`seed` is the number of the request, by which a replica knows it."""
    return {
        "model": MODEL,
        "messages": request.ask.messages,
        "max_tokens": request.sequence.answer,
        "seed": request.number,
        "temperature": 0.7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def speculation(sequence: ReplicaSequence) -> dict[str, Any]:
    """What vLLM reports with a response of an engine with a draft."""
    accepted = sequence.answer - sequence.steps
    return {"speculative_decoding": {"num_spec_steps": sequence.steps, "num_accepted_draft_tokens": accepted}}


def _has_text(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event["choices"])


async def _wait_for(event: asyncio.Event, client: "asyncio.Task[None]", seconds: float) -> None:
    """Until the event, the end of the client, or for so many seconds."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait((waiting, client), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
