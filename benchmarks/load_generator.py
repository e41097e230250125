"""Sends requests at given times, whether or not earlier ones have ended, and measures the responses.

A request that is sent late counts from its intended time: a slow server or generator does not hide the wait of those
that would have come meanwhile (coordinated omission). An event loop's timers have a resolution of 1 ms; a request that
is sent within it counts from when it is sent.
"""

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.arrivals import Kind, Mix, Phase, Zipf, arrival_times
from benchmarks.chat_connection import ChatConnection, Response, request_bytes
from benchmarks.chats import Chats
from benchmarks.load_results import LoadResults

RESOLUTION: Final = 0.001  # seconds
SENT_AT_ONCE: Final = 50  # overdue requests that are sent before responses are read again
HEARTBEAT: Final = 0.02  # seconds between two checks whether the generator is late
NOTICES_STOP: Final = 0.5  # seconds
IDLE: Final = 4.0  # seconds; uvicorn closes a connection that was idle for 5, possibly while a request is on its way
REPLACED_AFTER_ERROR: Final = 0.2  # seconds
LEAVE_AFTER: Final = 3  # reads with events after which a client leaves


class LoadPlan(NamedTuple):
    """What to send.

    - `url`: the server's, such as http://127.0.0.1:8080. `model`: the model to ask for.
    - `phases`: when requests arrive; `poisson`: at random intervals, otherwise at equal ones.
    - `hold`: seconds after the phases in which each request that ends is replaced by another one. With it, the number
      of concurrent requests is constant: no open loop.
    - `prompts`, `zipf`: the number of popular prompts, and the exponent of their distribution.
    - `name`: each name has prompts of its own; the same name and seed send the same requests.
    - `timeout`: seconds per request. `most_in_flight`: beyond it, a request is not sent but counted as an error.
    """

    url: str
    model: str
    phases: Sequence[Phase]
    poisson: bool = True
    hold: float = 0.0
    mix: Mix = Mix()
    prompts: int = 1000
    zipf: float = 1.1
    max_tokens: int = 64
    name: str = ""
    seed: int = 1
    timeout: float = 120.0
    most_in_flight: int = 10_000
    api_key: str | None = None

    @property
    def seconds(self) -> float:
        """From the start until the last request is sent."""
        return sum(phase.seconds for phase in self.phases) + self.hold


class _Request:
    """One in flight. `place`: its index in the list of those in flight."""

    __slots__ = ("connecting", "connection", "place", "prompt", "started")

    def __init__(self, prompt: str, started: float, place: int) -> None:
        self.prompt = prompt
        self.started = started
        self.place = place
        self.connection: ChatConnection | None = None
        self.connecting: asyncio.Task[None] | None = None


class LoadGenerator:
    """Runs one plan, once. `results` grows meanwhile."""

    def __init__(self, plan: LoadPlan, on_response: Callable[[Response, float], None] | None = None) -> None:
        """`on_response`: gets each response and the seconds since the request's intended time."""
        self.results = LoadResults()
        self._plan = plan
        self._on_response = on_response
        self._rng = Random(plan.seed)
        self._zipf = Zipf(plan.prompts, plan.zipf)
        self._chats = Chats(model=plan.model, max_tokens=plan.max_tokens, name=plan.name)
        url = urlsplit(plan.url)
        self._host, self._authority = url.hostname or "", url.netloc
        self._path = f"{url.path.rstrip('/')}/v1/chat/completions"
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._numbers = itertools.count()
        self._idle: list[tuple[ChatConnection, float]] = []
        self._open: list[_Request] = []
        self._start = 0.0
        self._is_sending = True
        self._stopped = False
        self._ended: asyncio.Event | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start; 0 before it."""
        return time.perf_counter() - self._start if self._start else 0.0

    def stop(self) -> None:
        """Sends nothing more; `run` returns once the requests in flight have ended."""
        self._stopped = True

    async def run(self) -> LoadResults:
        """Returns once all requests are sent and ended."""
        self._ended = asyncio.Event()
        self._start = time.perf_counter()
        heartbeat = asyncio.create_task(self._heartbeat())
        times = arrival_times(self._plan.phases, Random(f"{self._plan.seed} times") if self._plan.poisson else None)
        try:
            await self._send_all(times)
            while self._open:
                self._ended.clear()
                await self._ended.wait()
        finally:
            heartbeat.cancel()
            for request in list(self._open):  # on cancellation
                self._give_up(request, "cancelled")
            for connection, _ in self._idle:
                connection.abort("")
        return self.results

    async def _send_all(self, times: Iterator[float]) -> None:
        sent_at_once = 0
        for time_ in times:
            intended = self._start + time_
            sent_at_once += 1
            if await self._wait_until(intended):
                sent_at_once = 0
            elif sent_at_once >= SENT_AT_ONCE:
                await asyncio.sleep(0)
                sent_at_once = 0
            if self._stopped:
                break
            now = time.perf_counter()
            self.results.lag.add(max(0.0, now - intended))
            self._send(intended if now - intended > RESOLUTION else now)
        await self._wait_until(self._start + self._plan.seconds)
        self._is_sending = False
        self.results.seconds = time.perf_counter() - self._start

    async def _wait_until(self, due: float) -> bool:
        """Whether there was anything to wait for; returns early after `stop`."""
        has_waited = False
        while (wait := due - time.perf_counter()) > RESOLUTION / 2 and not self._stopped:
            await asyncio.sleep(min(wait, NOTICES_STOP))
            has_waited = True
        return has_waited

    def _send(self, started: float) -> None:
        results, mix = self.results, self._plan.mix
        kind = mix.kind(self._rng, len(self._open))
        results.sent += 1
        stream = self._rng.random() < mix.stream
        leave_after = LEAVE_AFTER if stream and mix.leave and self._rng.random() < mix.leave else None
        prompt = self._prompt(kind)
        if len(self._open) >= self._plan.most_in_flight:
            results.add_error("not sent: too many requests in flight")
            return
        results.followers += kind is Kind.FOLLOWER
        request = _Request(prompt, started, len(self._open))
        self._open.append(request)
        results.in_flight = len(self._open)
        results.most_in_flight = max(results.most_in_flight, len(self._open))
        body = self._chats.body(prompt, stream=stream)
        data = request_bytes(self._authority, self._path, body, self._plan.api_key)
        connection = self._idle_connection()
        if connection is None:
            request.connecting = asyncio.create_task(self._connect(request, data, leave_after))
        else:
            self._send_on(connection, request, data, leave_after)

    def _prompt(self, kind: Kind) -> str:
        match kind:
            case Kind.FOLLOWER:
                return self._rng.choice(self._open).prompt
            case Kind.NEW:
                return f"new {next(self._numbers)}"
            case Kind.POPULAR:
                return str(self._zipf.draw(self._rng))

    def _idle_connection(self) -> ChatConnection | None:
        now = time.perf_counter()
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_reusable and now - since < IDLE:
                return connection
            connection.abort("")
        return None

    async def _connect(self, request: _Request, data: bytes, leave_after: int | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: ChatConnection(self.results.gaps.add), self._host, self._port, ssl=self._ssl
            )
        except OSError as error:
            self._end(request, Response(0, "", None, 0.0, f"connect: {type(error).__name__}"))
            return
        request.connecting = None
        self._send_on(connection, request, data, leave_after)

    def _send_on(self, connection: ChatConnection, request: _Request, data: bytes, leave_after: int | None) -> None:
        request.connection = connection
        connection.send(data, lambda response: self._end(request, response), leave_after=leave_after)

    def _end(self, request: _Request, response: Response) -> None:
        last = self._open.pop()
        if last is not request:  # the last one takes its place
            self._open[request.place] = last
            last.place = request.place
        self.results.in_flight = len(self._open)
        self.results.add(response, request.started)
        if self._on_response is not None:
            self._on_response(response, time.perf_counter() - request.started)
        connection = request.connection
        if connection is not None and connection.is_reusable:
            self._idle.append((connection, time.perf_counter()))
        if self._plan.hold and self._is_sending and not self._stopped:
            # Not from here: the connection is still within its callback. A server that refuses is not asked at once.
            pause = 0.0 if response.error is None else REPLACED_AFTER_ERROR
            asyncio.get_running_loop().call_later(pause, self._replace)
        if not self._open and self._ended is not None:
            self._ended.set()

    def _replace(self) -> None:
        if self._is_sending and not self._stopped:
            self._send(time.perf_counter())

    def _give_up(self, request: _Request, error: str) -> None:
        if request.connecting is not None:
            request.connecting.cancel()
            self._end(request, Response(0, "", None, 0.0, error))
        elif request.connection is not None:
            request.connection.abort(error)

    async def _heartbeat(self) -> None:
        """Measures how late timers run, also while few requests are sent, and ends requests after their timeout."""
        due = time.perf_counter() + HEARTBEAT
        for number in itertools.count(1):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            self.results.lag.add(max(0.0, now - due))
            due = max(due + HEARTBEAT, now)
            if number % 25 == 0:  # each half second
                limit = now - self._plan.timeout
                for request in [request for request in self._open if request.started < limit]:
                    self._give_up(request, "timeout")
