"""One generation on its way, and all who wait for it.

Theory of operation. A flight takes what is generated as fast as it comes, whoever reads it, and keeps it until it is
over, so that a reader that comes later begins with its first frame. Each reader has a place of its own in it. A flight
that grows beyond `limit` takes no more readers, and keeps only what those that it has still need: no more than MAX_LAG
beside the newest event. A reader that is further behind is left behind. So a slow reader slows nobody, and memory is
bounded.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from router.core.cache.key import Key
from router.core.endpoints.engine_errors import is_refusal
from router.core.endpoints.error_format import error_frame
from router.core.endpoints.replay import replay
from router.core.endpoints.request import Request
from router.core.quota.rate_limit import estimate
from router.errors import UPSTREAM, ApiError
from router.flow.exchange import Exchange, Work
from router.flow.result import LOST, Landing
from router.shared.purges import Mark

Take = Callable[[bytes], bool]
"""Takes frames for a client, if it can at this moment."""

MAX_LAG: Final = 4 << 20
"""Bytes by which a reader may be behind, once a flight has grown beyond its limit."""


OWN_LIMITS: Final = ("queue_timeout", "queue_full", "tenant_queue_full", "out_of_resources")
"""The codes of errors about the process that led a flight: another one may have room."""


class Again(Exception):  # noqa: N818 - it is no error
    """The flight came to nothing for this reader, who has had nothing of it yet: he may begin anew."""


class Flight:
    """What is generated, for those who `attach`.

    - A reader has every byte from the first on, in order, and the end; those who fail are told so.
    - `on_empty` is called when the last reader has left a flight that is not over, `on_close` when it takes no more.
    """

    __slots__ = (
        "_events", "_first", "_frames", "_held", "_limit", "_on_close", "_on_empty", "documents", "id", "key",
        "landing", "launched", "led_here", "open", "readers", "request", "since", "task", "told", "work",
    )  # fmt: skip

    def __init__(
        self, id_: str, request: Request, key: Key | None, work: Work, *,
        documents: tuple[str, ...], since: Mark, limit: int,
        on_empty: "Callable[[Flight], None]", on_close: "Callable[[Flight], None]",
    ) -> None:  # fmt: skip
        """`key`: None where nobody else may have it; `since`: how far the purges were known when it began."""
        self.id = id_
        self.request = request
        self.key = key
        self.work = work
        self.documents = documents
        self.since = since
        self.launched = asyncio.get_running_loop().time()
        self.led_here = True
        self.open = key is not None
        self.landing: Landing | None = None
        self.told: Callable[[bytes], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._frames: list[bytes] = []
        self._first = 0  # how many frames have been let go of
        self._held = 0
        self._events = 0  # in what has been let go of
        self._limit = limit
        self._on_empty = on_empty
        self._on_close = on_close
        self.readers: list[Reader] = []

    @property
    def begun(self) -> bool:
        """Whether it has said anything."""
        return self._first + len(self._frames) > 0

    @property
    def complete(self) -> bool:
        """Whether it holds all that it has said."""
        return self._first == 0

    def so_far(self) -> bytes:
        """All that it has said, as long as it is complete."""
        return b"".join(self._frames)

    def close(self) -> None:
        """It takes no more readers."""
        if self.open:
            self.open = False
            self._on_close(self)

    def attach(self, request: Request, exchange: Exchange, *, leads: bool = False) -> "Reader":
        """A reader from the first frame on. `leads`: the flight is there for him, so that its failure is his."""
        reader = Reader(self, request, exchange, leads=leads)
        self.readers.append(reader)
        return reader

    def detach(self, reader: "Reader") -> None:
        self._let_leave(reader)
        if not self.readers and self.landing is None:
            self._on_empty(self)

    # -- the one who flies ------------------------------------------------------------------------------------------

    def say(self, frames: bytes) -> None:
        """Takes what has come."""
        if not self._frames and not self._first:
            self.work.first_token = time.perf_counter()
        self._frames.append(frames)
        self._held += len(frames)
        if self.told is not None:
            self.told(frames)
        for reader in self.readers:
            reader.hear(frames)
        if self._held > self._limit:
            self._let_go()

    def land(self, landing: Landing) -> None:
        """It is over."""
        self.landing = landing
        self.open = False
        self.work.prompt_tokens, self.work.completion_tokens = landing.prompt_tokens, landing.completion_tokens
        self.work.error = landing.reason
        if self.work.first_token is not None or (self.work.dispatched is not None and landing.reason == LOST):
            self._estimate(landing)
        for reader in self.readers:
            reader.wake()

    def _estimate(self, landing: Landing) -> None:
        """What it has used, where nobody has told."""
        if not landing.prompt_tokens + landing.completion_tokens:
            events = self._events + sum(map(_events_in, self._frames))
            self.work.estimate = estimate(len(self.request.body), events, len(landing.body or b""))

    def _let_go(self) -> None:
        """Lets go of what all have read, and of readers who are too far behind."""
        self.close()
        while True:
            needed = min((reader.at for reader in self.readers), default=self._first + len(self._frames))
            unneeded = self._frames[: needed - self._first]
            self._held -= sum(map(len, unneeded))
            self._events += sum(map(_events_in, unneeded))
            del self._frames[: needed - self._first]
            self._first = needed
            # The newest event is not counted, so that one of any size reaches those who have had all before it.
            newest = len(self._frames[-1]) if self._frames else 0
            if self._held - newest <= max(self._limit, MAX_LAG):
                return
            for reader in [reader for reader in self.readers if reader.at == needed]:
                reader.left_behind = True
                self._let_leave(reader)

    def _let_leave(self, reader: "Reader") -> None:
        if reader in self.readers:  # who was left behind has left already
            self.readers.remove(reader)

    def frames_from(self, at: int) -> bytes:
        """What it has said from its frame number `at` on, which it still holds."""
        frames = self._frames[at - self._first :] if at > self._first else self._frames
        return frames[0] if len(frames) == 1 else b"".join(frames)

    @property
    def said(self) -> int:
        """How many frames it has said."""
        return self._first + len(self._frames)


class Reader:
    """One client's place in a flight, and the form in which he wants it.

    - `begin` waits for the first token, or for all of a JSON answer; it gives the answer if that is whole. Raises the
      ApiError that the flight ended with, or Again.
    - `next` then gives what the client gets of a stream; with the last of it, it is `over`. A flight that fails after
      its first token ends with one error event and no `[DONE]`. While it waits, what comes goes to `take` at once,
      without a turn of the loop, until that says that it can have no more.
    - `close` must be called once nothing is wanted any more; with the last reader, the engine is freed.
    """

    __slots__ = (
        "_exchange", "_flight", "_leads", "_request", "_take", "_waiting", "at", "left_behind", "over",
    )  # fmt: skip

    def __init__(self, flight: Flight, request: Request, exchange: Exchange, *, leads: bool) -> None:
        self.at = 0
        self.left_behind = False
        self._flight = flight
        self._request = request
        self._exchange = exchange
        self._leads = leads
        self._waiting: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self.over = False

    def hear(self, frames: bytes) -> None:
        """The flight has said this, its newest."""
        take = self._take
        if take is not None and take(frames):
            self.at += 1
        else:
            self._take = None  # what comes now comes after what he has to fetch
            self.wake()

    def wake(self) -> None:
        """There is something new."""
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _news(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    async def begin(self) -> bytes | None:
        flight = self._flight
        # Which form it has is known once something has come of it: another process may lead it for a JSON client.
        while flight.landing is None and not (self._request.stream and flight.begun):
            await self._news()
        work, exchange = flight.work, self._exchange
        exchange.engine, exchange.fallback, exchange.task = work.engine, work.fallback, work.task
        exchange.first_token = time.perf_counter()
        if flight.landing is None:
            return None
        if not flight.landing.whole:
            failure = self._failure(flight.landing)
            if self._request.stream and flight.begun and failure is flight.landing.error:
                return None  # what there is of it comes first
            exchange.fallback = exchange.first_token = None  # there was none
            raise failure
        self._note(flight.landing)
        if self._request.stream and flight.landing.body is None:
            return None
        answer = self._in_my_form(flight.landing)
        if answer is None:
            raise Again
        return answer

    def _failure(self, landing: Landing) -> Exception:
        error = landing.error
        if error is None:
            return Again()
        if self._leads and self._flight.led_here:
            return error
        if not self._flight.led_here and error.code in OWN_LIMITS:
            return Again()
        # A generation that broke off may do better; and a refusal can be about a field that is not in the key, such as
        # `priority`, which this request does not have, or has otherwise.
        return Again() if landing.begun or is_refusal(error.status) else error

    def _in_my_form(self, landing: Landing) -> bytes | None:
        if not self._request.stream and landing.body is not None:
            return landing.body
        return replay(landing.recording, self._request) if landing.recording is not None else None

    async def next(self, take: Take | None = None) -> bytes:
        flight = self._flight
        while not self.over:
            if self.left_behind:
                self.over = True
                return self._broken("slow-reader", "The answer broke off: it was not read fast enough.")
            data = b""
            if self.at < flight.said:
                data = flight.frames_from(self.at)
                self.at = flight.said
            if flight.landing is not None:
                self.over = True
                return data + self._end(flight.landing)
            if data:
                return data
            self._take = take  # he has had all that was said
            try:
                await self._news()
            finally:
                self._take = None
        return b""

    def _end(self, landing: Landing) -> bytes:
        if landing.whole:
            self._note(landing)
            return landing.endings[self._request.include_usage]
        return self._broken(landing.reason or "lost", landing.error.message if landing.error else "")

    def _broken(self, reason: str, message: str) -> bytes:
        self._exchange.outcome = "failed"
        self._exchange.error = reason
        return error_frame(self._request.endpoint, ApiError(502, message, kind=UPSTREAM, code="engine_failed"))

    def _note(self, landing: Landing) -> None:
        exchange = self._exchange
        exchange.prompt_tokens, exchange.completion_tokens = landing.prompt_tokens, landing.completion_tokens

    def close(self) -> None:
        self.over = True
        self._flight.detach(self)


def _events_in(frames: bytes) -> int:
    return frames.count(b"data:")
