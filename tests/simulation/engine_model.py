"""An engine as a simulated process: HTTP/1.1, chat completions as JSON and as SSE, and scripted generations.

Each generation has a unique number, which is in every token: `g17.0 g17.1 g17.2 `. So the bytes that a client gets show
their generation, their positions, and whether they are complete.
"""

import asyncio
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.clock import CLOCK
from tests.simulation.history import SimulatedGeneration
from tests.simulation.loop import SimulatedProcess, VirtualLoop
from tests.simulation.network import WireEnd

_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_QUESTION: Final = re.compile(rb"question (\d+)")
_METRICS: Final = b"vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


class GenerationScript:
    """The course of a generation: seconds before each token, and whether the engine aborts it."""

    __slots__ = ("aborts", "waits")

    def __init__(self, random: Random, *, pauses: bool, aborts: bool) -> None:
        count = random.randint(1, 8)
        pace = random.choice((0.001, 0.02, 0.1, 0.3))
        self.waits = [pace * (0.5 + random.random()) for _ in range(count)]
        if pauses and random.random() < 0.3:
            self.waits[random.randrange(count)] += random.choice((0.7, 2.5, 3.5))
        self.aborts = aborts and random.random() < 0.2


class EngineModel:
    """One engine. `script` returns the course of the next generation; `on_generation` records its start."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        script: Callable[[], GenerationScript],
        on_generation: Callable[[int, str, str, int, bool], SimulatedGeneration],
    ) -> None:
        self.loop = loop
        self.process = SimulatedProcess(name)
        self.script = script
        self.on_generation = on_generation

    def accept(self) -> "_EngineConnection":
        return _EngineConnection(self)


class _EngineConnection(asyncio.Protocol):
    def __init__(self, engine: EngineModel) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: Any = None
        self._client = ""
        self._generation: SimulatedGeneration | None = None
        self._waits: list[float] = []
        self._script: GenerationScript | None = None
        self._streams = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WireEnd)
        self._transport = transport
        self._client = transport.wire.ends[0].process.name

    def connection_lost(self, exc: Exception | None) -> None:
        if self._generation is not None:
            self._generation.end("aborted")
            self._generation = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        match = _LENGTH.search(head)
        length = int(match[1]) if match is not None else 0
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        if head.startswith(b"POST"):
            self._generate(json.loads(rest[:length]), rest)
        else:
            body = _METRICS if head.startswith(b"GET /metrics") else b"{}"
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    # -- a generation -------------------------------------------------------------------------------------------------

    def _generate(self, body: dict[str, Any], raw: bytes) -> None:
        engine = self._engine
        match = _QUESTION.search(raw)
        assert match is not None
        self._script = script = engine.script()
        self._streams = bool(body.get("stream"))
        self._generation = generation = engine.on_generation(
            int(match[1]), self._client, engine.process.name, len(script.waits), self._streams
        )
        self._waits = list(script.waits)
        if self._streams:
            role = _event(generation, {"role": "assistant", "content": ""})
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                + _chunk(role)
            )
        self._next()

    def _next(self) -> None:
        if self._waits:
            self._engine.loop.call_later(self._waits.pop(0), self._token, self._generation)
        else:
            self._finish()

    def _token(self, generation: SimulatedGeneration) -> None:
        if self._generation is not generation or self._script is None:
            return
        if self._script.aborts and generation.tokens_sent >= generation.tokens // 2:
            generation.end("broken")
            self._generation = None
            self._transport.abort()
            return
        if self._streams:
            self._transport.write(
                _chunk(_event(generation, {"content": token(generation.number, generation.tokens_sent)}))
            )
        generation.tokens_sent += 1
        self._next()

    def _finish(self) -> None:
        generation, self._generation = self._generation, None
        assert generation is not None
        usage = {"prompt_tokens": 5, "completion_tokens": generation.tokens, "total_tokens": 5 + generation.tokens}
        if self._streams:
            last = _event(generation, {}, finish="stop") + _event(generation, None, usage=usage) + b"data: [DONE]\n\n"
            self._transport.write(_chunk(last) + b"0\r\n\r\n")
        else:
            text = "".join(token(generation.number, position) for position in range(generation.tokens))
            message = {"role": "assistant", "content": text}
            body = json.dumps({
                "id": f"chatcmpl-{generation.number}", "object": "chat.completion", "created": 1, "model": "llama",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage,
            }).encode()  # fmt: skip
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
        generation.end("whole")


def token(generation: int, at: int) -> str:
    return f"g{generation}.{at} "


def _event(
    generation: SimulatedGeneration,
    delta: dict[str, str] | None,
    *,
    finish: str | None = None,
    usage: dict[str, int] | None = None,
) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    event: dict[str, Any] = {
        "id": f"chatcmpl-{generation.number}", "object": "chat.completion.chunk", "created": 1, "model": "llama",
        "choices": choices,
    }  # fmt: skip
    if usage is not None:
        event["usage"] = usage
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def now() -> float:
    return CLOCK.now
