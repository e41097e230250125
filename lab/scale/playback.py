"""Sends the arrivals of a trace to real routers at their times, in an open loop."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.chat_connection import ChatConnection, Response, request_bytes
from benchmarks.chats import SYSTEM
from lab.scale.outcomes import FOLLOWER, HIT, MISS, Outcome
from lab.scale.trace import Arrival

_KINDS: Final = {"HIT": HIT, "COALESCED": FOLLOWER, "MISS": MISS}
_DRAIN: Final = 30.0  # seconds for the last responses
_MAX_IDLE: Final = 4.0  # seconds; uvicorn closes a connection that was idle for 5
_LEAD: Final = 0.2  # seconds before the first arrival


class Playback:
    """Plays one trace, once. `late`: seconds, the most by which a request was sent after its time."""

    def __init__(self, ports: Sequence[int], model: str) -> None:
        """`ports`: of the router processes, by their number in the trace."""
        self._ports = ports
        self._model = model
        self._idle: list[list[tuple[ChatConnection, float]]] = [[] for _ in ports]  # with the time since when
        self._connecting: set[asyncio.Task[None]] = set()
        self._outcomes: list[Outcome] = []
        self.late = 0.0
        self._left = 0
        self._done = asyncio.Event()

    async def run(self, trace: Sequence[Arrival]) -> list[Outcome]:
        """Raises TimeoutError."""
        start = time.perf_counter() + _LEAD
        self._left = len(trace)
        for arrival in trace:
            request = request_bytes("router", "/v1/chat/completions", self._body(arrival))
            await asyncio.sleep(max(0.0, start + arrival.at - time.perf_counter()))
            self.late = max(self.late, time.perf_counter() - start - arrival.at)
            self._send(arrival, start + arrival.at, request)
        await asyncio.wait_for(self._done.wait(), _DRAIN)
        for connection, _ in (each for idle in self._idle for each in idle):
            connection.abort("the run is over")
        return self._outcomes

    def _body(self, arrival: Arrival) -> bytes:
        question = f"rank {arrival.prompt.rank}, question {arrival.prompt.number}?"
        fields = {
            "model": self._model,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": arrival.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        return json.dumps(fields).encode()

    def _send(self, arrival: Arrival, asked: float, request: bytes) -> None:
        idle = self._idle[arrival.process]
        while idle:
            connection, since = idle.pop()
            if connection.is_reusable and time.perf_counter() - since < _MAX_IDLE:
                self._send_on(connection, arrival, asked, request)
                return
            connection.abort("idle for long")
        task = asyncio.get_running_loop().create_task(self._open_and_send(arrival, asked, request))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open_and_send(self, arrival: Arrival, asked: float, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(ChatConnection, "127.0.0.1", self._ports[arrival.process])
        self._send_on(connection, arrival, asked, request)

    def _send_on(self, connection: ChatConnection, arrival: Arrival, asked: float, request: bytes) -> None:
        connection.send(request, lambda response: self._on_end(connection, arrival, asked, response))

    def _on_end(self, connection: ChatConnection, arrival: Arrival, asked: float, response: Response) -> None:
        total = response.ended - asked
        if response.error is None:
            kind = _KINDS[response.cache]
            first = (response.first if response.first is not None else response.ended) - asked
        else:
            kind, first = response.error.rpartition(" ")[2], total
        self._outcomes.append(Outcome(kind, first, total))
        if connection.is_reusable:
            self._idle[arrival.process].append((connection, time.perf_counter()))
        self._left -= 1
        if not self._left:
            self._done.set()
