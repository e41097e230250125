"""A router as a simulated process: the application from `router.process.app.build`, and the operations on it."""

import asyncio
from collections.abc import Callable, MutableMapping
from functools import cache
from random import Random
from typing import Any, Final

import msgspec

from router.api.inference.endpoint import InferenceEndpoint
from router.flow.gateway import Gateway
from router.net.client.transport import HTTPTransport
from router.net.server.eager import EagerRunner
from router.process.app import build
from router.process.application import Application
from router.settings import Settings, parse
from tests.simulation.clients import SimulatedRequest
from tests.simulation.clock import CLOCK
from tests.simulation.loop import SimulatedProcess, VirtualLoop

REDIS_ADDRESS: Final = ("redis", 6379)
TENANTS: Final = ("acme", "beta")
STANDBY_SHARE: Final = 1  # percent


@cache
def settings(engines: int, *, standby: bool, slots: int) -> Settings:
    """The default settings, with the addresses of Redis and the engines. `standby`, `slots`: as in ScenarioPlan.

    It has a share, which none of the few requests falls into: with a share of 0, it would not be in their plan.
    """
    engine_tables = "".join(
        f'[[engine]]\nname = "e{number}"\nkind = "vllm"\nmodel = "llama"\nurl = "http://e{number}:8000"\n'
        "max_model_len = 8192\n"
        + (f"max_in_flight = {slots}\n" if slots else "")
        + (f'share = {STANDBY_SHARE}\nrevision = "other"\n' if standby and number == engines else "")
        for number in range(1, engines + 1)
    )
    tenants = f'[[tenant]]\nname = "{TENANTS[0]}"\n[[tenant]]\nname = "{TENANTS[1]}"\nconcurrent_requests = 50\n'
    return parse(
        f'[cache]\nurl = "redis://{REDIS_ADDRESS[0]}:{REDIS_ADDRESS[1]}"\n[auth]\nmode = "header"\n'
        f'[[model]]\nname = "llama"\n{tenants}{engine_tables}',
        {},
    )


class SimulatedRouter:
    """One router process. `ready` once it accepts requests."""

    def __init__(
        self, loop: VirtualLoop, name: str, random: Random, *, engines: int, standby: bool, slots: int, tick: float
    ) -> None:
        self.loop = loop
        self.name = name
        self.random = random
        self.process = SimulatedProcess(name, tick)
        self.ready = False
        self.stopped = False
        self.requests: dict[int, SimulatedRequest] = {}
        self.application: Application
        self._settings = settings(engines, standby=standby, slots=slots)
        self._runner: EagerRunner
        self._stop: asyncio.Event
        self._reloads = 0

    def start(self) -> None:
        self.loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._runner = EagerRunner(self.loop)  # type: ignore[arg-type, unused-ignore]
        self.application = build(self._settings, transport=HTTPTransport(), random=self.random.random)
        messages = iter(("lifespan.startup", "lifespan.shutdown"))

        async def receive() -> MutableMapping[str, Any]:
            kind = next(messages)
            if kind == "lifespan.shutdown":
                await self._stop.wait()
            return {"type": kind}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.ready = message["type"] == "lifespan.startup.complete"
            self.stopped = not self.ready

        await self.application({"type": "lifespan"}, receive, send)

    def submit(self, request: SimulatedRequest, after: float) -> None:
        """Deliver a request after `seconds`."""
        self.requests[request.record.number] = request
        self.loop.deliver(self.process, CLOCK.now + after, self._begin, request)

    def _begin(self, request: SimulatedRequest) -> None:
        if request.record.ending:  # the client has already disconnected
            return
        self._runner.start(
            self.application(request.scope(), request.receive, request.send),
            request.on_task_started,
            request.on_app_done,
        )

    def call_in_process(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back in the process after a short delay, as for a closed client connection."""
        self.loop.deliver(self.process, CLOCK.now + 0.0003, callback, *args)

    def reload(self) -> None:
        """Apply settings that differ but have the same effect."""
        self._reloads += 1
        # Only `max_entry` differs, by a few bytes.
        cache_ = msgspec.structs.replace(self._settings.cache, max_entry=self._settings.cache.max_entry - self._reloads)
        self.loop.spawn(self.process, self.application.reload(msgspec.structs.replace(self._settings, cache=cache_)))

    def stop(self) -> None:
        self.call_in_process(self._stop.set)

    def leaks(self) -> list[str]:
        """State that must be empty when there are no requests."""
        runtime = self.application._runtime
        cache, limits = runtime.services.cache, self.application._process_state.tenant_limits
        coalescer, leases = cache.coalescer, cache.leases
        endpoint = next(iter(runtime.inference_endpoints.values()))
        assert isinstance(endpoint, InferenceEndpoint)
        gateway = endpoint._gateway
        assert isinstance(gateway, Gateway)
        state = {
            "retiring": self.application._retiring,
            "requests": runtime.active_requests,
            "generations": runtime._rules.running,
            "flights": coalescer._active_by_id,
            "flights to join": coalescer._joinable_by_digest,
            "wanted": coalescer._abandonment._followed_at,
            "cancel timers": coalescer._abandonment._timers,
            "claims": leases.claims._claims,
            "broadcasts": leases._writers,
            "followed": leases._stream_events,
            "fetches": gateway._cache._local_cache._fetches,
            "places": {name: engine.in_flight for name, engine in runtime.catalog.engines.items() if engine.in_flight},
            "permits": {
                name: tenant._running_requests for name, tenant in limits._tenants.items() if tenant._running_requests
            },
        }
        return [f"6: {self.name} still has {name}: {content}" for name, content in state.items() if content]
