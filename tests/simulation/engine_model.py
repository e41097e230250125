"""An engine as a simulated process: HTTP/1.1, generations as JSON and as SSE by a script, and how they break off.

Each answer has a unique number, which is in every token: `g17.0 g17.1 g17.2 `. So the bytes that a client gets show
their answer, their positions, and whether they are complete.
"""

import asyncio
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.clock import CLOCK
from tests.simulation.engine_answers import AnswerFormat, EngineRequest, read_request, token
from tests.simulation.history import SimulatedGeneration
from tests.simulation.loop import SimulatedProcess, VirtualLoop
from tests.simulation.network import WireEnd

_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_METRICS: Final = (
    b"vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"
    b"vllm:generation_tokens_total %.3f\n"
)

_UNAUTHORIZED: Final = (
    b'HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n{"error":"Unauthorized"}'
)

COMMENT: Final = b": ping\n\n"

BREAKS: Final = (
    "reset", "close", "half", "error", "aborted", "no-done", "stall",
)  # fmt: skip
"""How a stream breaks off: a TCP reset or a close between two events, a reset within one, an
error event, the finish reason of an engine that is stopped (vLLM's "abort"), an end without `[DONE]`, and silence.
"""


class GenerationScript:
    """The course of a generation: seconds before each token, and how the engine breaks it off ("" if it does not).

    `at_least`: tokens that are sent before. `comments_at`: seconds from the start to each comment in a stream.
    `exits_after`: tokens after which the engine's process ends; None if it does not. `pairs`: events may have two
    tokens. `thoughts`: seconds before each piece of reasoning in a stream; `breaks_after_thoughts`: how many of these
    come before it breaks off; None if it does not while it reasons.
    """

    __slots__ = (
        "at_least", "breaks", "breaks_after_thoughts", "comments_at", "exits_after", "pairs", "thoughts", "waits",
    )  # fmt: skip

    def __init__(self, random: Random, *, pauses: bool, aborts: bool) -> None:
        count = random.randint(1, 8)
        pace = random.choice((0.001, 0.02, 0.1, 0.3))
        self.waits = [pace * (0.5 + random.random()) for _ in range(count)]
        if pauses and random.random() < 0.3:
            self.waits[random.randrange(count)] += random.choice((0.7, 2.5, 3.5))
        self.breaks = random.choice(BREAKS) if aborts and random.random() < 0.2 else ""
        self.at_least = 0
        self.comments_at: tuple[float, ...] = ()
        self.exits_after: int | None = None
        self.pairs = True
        self.thoughts: list[float] = []
        self.breaks_after_thoughts: int | None = None

    def reason(self, random: Random, *, breaks_in_thoughts: bool) -> None:
        """`breaks_in_thoughts`: if it breaks off, it is while it reasons."""
        self.thoughts = [random.choice((0.001, 0.1)) for _ in range(random.randint(1, 4))]
        if self.breaks and (breaks_in_thoughts or random.random() < 0.5):
            self.breaks_after_thoughts = random.randint(1, len(self.thoughts))

    def break_stream(self, random: Random) -> None:
        """The engine breaks it off after the first token."""
        self.breaks, self.at_least = random.choice(BREAKS), 1

    def end_engine(self, random: Random) -> None:
        """At once, or after some tokens."""
        self.exits_after = random.choice((0, 0, 1, 3))


class EngineModel:
    """One engine. `script` returns the course of the generation for a request; `on_generation` records its start.

    `on_exit` is called when a request has ended its process; `start` gives it another one.
    `tells_ids`: whether it knows `return_token_ids`. `has_counters`: whether its metrics show that it computes.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        script: Callable[[EngineRequest], GenerationScript],
        on_generation: Callable[[EngineRequest, str, str, int], SimulatedGeneration],
        *,
        on_exit: Callable[["EngineModel"], None] = lambda _: None,
        tells_ids: bool = True,
        has_counters: bool = True,
    ) -> None:
        self.loop = loop
        self.process = SimulatedProcess(name)
        self.script = script
        self.on_generation = on_generation
        self.on_exit = on_exit
        self.tells_ids = tells_ids
        self.has_counters = has_counters
        self.refuses = False  # the key of the routers
        self._computed = 0.0
        self._running: dict[_EngineConnection, bool] = {}  # the requests, and whether they are computed

    def accept(self) -> "_EngineConnection":
        return _EngineConnection(self)

    def exit(self) -> None:
        """The process ends with all its generations."""
        for connection in self._running:
            connection.end_with_process()
        self._running.clear()
        self._computed = 0.0
        self.on_exit(self)

    def start(self) -> None:
        self.process = SimulatedProcess(self.process.name)

    def set_running(self, connection: "_EngineConnection", *, computes: bool | None) -> None:
        """`computes`: False for a generation that hangs, None for one that has ended."""
        self._running.pop(connection, None)
        if computes is not None:
            self._running[connection] = computes

    def metrics(self) -> bytes:
        """What is computed shows even where nothing is sent: a long prompt, or text that a parser holds back."""
        if not self.has_counters:
            return b""
        if any(self._running.values()):
            self._computed = CLOCK.now
        return _METRICS % (len(self._running), self._computed)


class _EngineConnection(asyncio.Protocol):
    def __init__(self, engine: EngineModel) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: Any = None
        self._client = ""
        self._generation: SimulatedGeneration | None = None
        self._waits: list[float] = []
        self._thoughts = 0
        self._script: GenerationScript | None = None
        self._format: AnswerFormat
        self._request: EngineRequest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WireEnd)
        self._transport = transport
        self._client = transport.wire.ends[0].process.name

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.set_running(self, computes=None)
        if self._generation is not None:
            self._generation.end("aborted")
            self._generation = None

    def end_with_process(self) -> None:
        if self._generation is not None:
            self._generation.end("killed")
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
        if self._engine.refuses and not head.startswith(b"GET /health"):
            self._transport.write(_UNAUTHORIZED)
        elif head.startswith(b"POST"):
            self._generate(json.loads(rest[:length]))
        else:
            body = self._engine.metrics() if head.startswith(b"GET /metrics") else b"{}"
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    # -- a generation -------------------------------------------------------------------------------------------------

    def _generate(self, body: dict[str, Any]) -> None:
        engine = self._engine
        request = read_request(body if engine.tells_ids else body | {"return_token_ids": False})
        self._request = request
        engine.set_running(self, computes=True)
        self._script = script = engine.script(request)
        self._generation = generation = engine.on_generation(
            request, self._client, engine.process.name, len(script.waits)
        )
        # The answer that is continued may be longer than the script.
        self._waits = [script.waits[at % len(script.waits)] for at in range(generation.tokens - generation.first)]
        self._format = AnswerFormat(request, generation.number, 2 + generation.first)
        if request.streams:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                + _chunk(self._format.opening())
            )
            for seconds in script.comments_at:
                engine.loop.call_later(seconds, self._comment, generation)
        self._thoughts = 0
        self._next()

    def _next(self) -> None:
        thoughts = self._script.thoughts if self._script is not None else []
        if self._thoughts < len(thoughts):
            self._engine.loop.call_later(thoughts[self._thoughts], self._think, self._generation)
        elif self._waits:
            self._engine.loop.call_later(self._waits.pop(0), self._token, self._generation)
        else:
            self._finish()

    def _comment(self, generation: SimulatedGeneration) -> None:
        if self._generation is generation:
            self._transport.write(_chunk(COMMENT))

    def _think(self, generation: SimulatedGeneration) -> None:
        if self._generation is not generation or self._script is None:
            return
        self._transport.write(_chunk(self._format.thought(self._thoughts)))
        self._thoughts += 1
        if self._thoughts == self._script.breaks_after_thoughts:
            self._break_off(self._script.breaks, generation)
        else:
            self._next()

    def _token(self, generation: SimulatedGeneration) -> None:
        if self._generation is not generation or self._script is None:
            return
        exits_after = self._script.exits_after
        if exits_after is not None and generation.tokens_sent >= exits_after:
            self._engine.exit()
            return
        count = generation.tokens - generation.first
        if self._script.breaks and generation.tokens_sent >= max(self._script.at_least, count // 2):
            self._break_off(self._script.breaks, generation)
            return
        # As with a draft: after the first, an event can have two tokens. Without ids, a router cannot count them.
        pairs = self._script.pairs and generation.number % 3 == 0 and generation.tokens_sent and self._request.asks_ids
        step = min(2 if pairs else 1, len(self._waits) + 1)
        if self._request.streams:
            position = generation.first + generation.tokens_sent
            tokens = [(generation.answer, position + number) for number in range(step)]
            self._transport.write(_chunk(self._format.event(tokens)))
        generation.tokens_sent += step
        del self._waits[: step - 1]
        self._next()

    def _break_off(self, how: str, generation: SimulatedGeneration) -> None:
        if how == "stall" and self._request.streams and (generation.tokens_sent or self._thoughts):
            self._engine.set_running(self, computes=False)
            return  # until the router closes the connection
        self._engine.set_running(self, computes=None)
        next_event = self._format.event([(generation.answer, generation.first + generation.tokens_sent)])
        generation.end("broken")
        self._generation = None
        data = b""
        if self._request.streams:
            match how:
                case "half":
                    # The beginning of the token is in it.
                    data = next_event[: next_event.index(b"g%d." % generation.answer) + 2]
                case "error":
                    data = b'data: {"error": {"message": "dead", "type": "InternalServerError", "code": 500}}\n\n'
                    data += b"data: [DONE]\n\n"
                case "aborted":
                    data = self._format.event([], "abort") + b"data: [DONE]\n\n"
        if data:
            self._transport.write(_chunk(data))
        if how in ("close", "error", "aborted", "no-done") and self._request.streams:
            if how != "close":
                self._transport.write(b"0\r\n\r\n")
            self._transport.close()
        else:
            self._transport.abort()

    def _finish(self) -> None:
        if self._script is not None and self._script.exits_after is not None:  # it has fewer tokens
            self._engine.exit()
            return
        generation, self._generation = self._generation, None
        assert generation is not None
        self._engine.set_running(self, computes=None)
        completion = generation.tokens - generation.first
        reason = "length" if generation.tokens == self._limit(generation) else "stop"
        if self._request.streams:
            last = self._format.event([], reason) + self._format.usage_event(completion) + b"data: [DONE]\n\n"
            self._transport.write(_chunk(last) + b"0\r\n\r\n")
        else:
            text = "".join(token(generation.answer, at) for at in range(generation.first, generation.tokens))
            body = self._format.body(text, reason, completion)
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
        generation.end("whole")

    def _limit(self, generation: SimulatedGeneration) -> int:
        return generation.first + (self._request.max_tokens or 1000)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def now() -> float:
    return CLOCK.now
