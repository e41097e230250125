"""One connection to an engine: an asyncio protocol that carries one exchange after the other.

Everything that happens on the socket ends in `data_received`, `eof_received` or `connection_lost`. They feed the
reader, hand on what it gives, and note a failure if there is one. Who asks waits twice at most: for the head, and for
the end of the body, or for as much of it as its sink wants. The pieces in between cost no future and wake no task: the
sink is called as they come.

A connection has one timer at most, and it is late on purpose: a wait only notes until when, and the timer, when it
fires, sets itself again for what is left, be it of a later exchange. So a stream of a thousand chunks, and a connection
that carries a thousand answers, cost no timer but the one that was running anyway.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from router.net.client.errors import EngineError, broken_off, connection_reset, timed_out
from router.net.client.http1 import ResponseReader
from router.net.client.target import Origin

Sink: TypeAlias = Callable[[bytes], bool]
"""Takes a piece of a body, which is never empty, and tells whether that was enough."""

Waiter: TypeAlias = asyncio.Future[Exception | None]
"""Done when what was waited for has come, or has failed, with what it failed of."""

CLOCK_RESOLUTION: Final = 0.001
"""Seconds; uvloop's clock counts milliseconds, so its timers fire up to one early."""


class HTTPConnection(asyncio.Protocol):
    """A socket to an origin.

    - `ask` starts an exchange and waits for its head, `pour` for its body; `finish` ends it, telling whether the
      connection can carry another. Only one thing is waited for at a time.
    - Nothing is waited for beyond the instant that `ask` names, until `pour` gives each piece a time of its own; and
      beyond the last one, nothing at all. Instants are those of the loop's clock.
    - `usable` is false once either side has closed, and once bytes came that nobody asked for.
    - `stale`: the connection had served before, and died under this exchange before any byte of its response came.
    - Reading pauses while more than `high_water` bytes wait unread.
    - `on_lost` is called once, when the socket is closed.
    """

    __slots__ = (
        "_buffered",
        "_busy",
        "_chunk_timeout",
        "_closed",
        "_deadline",
        "_exchange_count",
        "_failure",
        "_high_water",
        "_loop",
        "_on_lost",
        "_paused",
        "_sink",
        "_timer",
        "_timer_at",
        "_total_deadline",
        "_transport",
        "_unread_bytes",
        "_waiter",
        "origin",
        "reader",
        "sink_done",
    )

    def __init__(
        self,
        origin: Origin,
        loop: asyncio.AbstractEventLoop,
        *,
        high_water: int,
        max_head: int,
        on_lost: Callable[["HTTPConnection"], None],
    ) -> None:
        self.origin = origin
        self.reader = ResponseReader(max_head=max_head)
        self.sink_done = False  # the sink has what it wanted
        self._deadline = self._total_deadline = 0.0
        self._chunk_timeout: float | None = None
        self._loop = loop
        self._high_water = high_water
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._busy = False  # an exchange is under way
        self._exchange_count = 0
        self._failure: EngineError | None = None
        self._waiter: Waiter | None = None
        self._sink: Sink | None = None
        self._buffered: list[bytes] = []  # body that came while there was no sink for it
        self._unread_bytes = 0  # all bytes that came then
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # What the owner does with it.

    @property
    def usable(self) -> bool:
        return not self._closed and self._transport is not None and not self._transport.is_closing()

    @property
    def closed_while_idle(self) -> bool:
        failure = self._failure
        return (
            failure is not None
            and failure.reason != "timeout"
            and self._exchange_count > 1
            and self.reader.nothing_received
        )

    @property
    def is_consumed(self) -> bool:
        """Whether the response is complete, and all of its body has been given."""
        return self.reader.done and not any(self._buffered)

    @property
    def is_open(self) -> bool:
        """Whether there is a socket, which `on_lost` will be called for."""
        return self._transport is not None

    def send_request(self, request: bytes, deadline: float, total_deadline: float) -> Waiter:
        """Start an exchange: send the request and wait for the head of the response."""
        if self._transport is None or self._closed:
            raise broken_off()
        self.reader.begin()
        self._busy = True
        self._exchange_count += 1
        self._failure = None
        self._buffered.clear()
        self._unread_bytes = 0
        self._deadline, self._total_deadline = deadline, total_deadline
        self._transport.write(request)
        return self._start_wait()

    def stream_to(self, sink: Sink, chunk_timeout: float | None = None) -> Waiter | None:
        """Give the body to `sink` as it comes, until it has enough or that is all; None if this is so at once.

        `each`: the seconds that each piece may take from now on.
        What the sink raises later is what the body fails of; what has gone wrong already is raised.
        """
        if self._waiter is not None:
            raise RuntimeError("another task is already reading this response")
        reader = self.reader
        held, self._buffered = b"".join(self._buffered), []
        self.sink_done = bool(held) and sink(held)
        self._unread_bytes = 0
        if self._paused:
            self._resume_reading()
        if self.sink_done or reader.done:
            return None
        if self._failure is not None:
            raise self._failure
        self._sink, self._chunk_timeout = sink, chunk_timeout
        if chunk_timeout is not None:
            self._deadline = min(self._loop.time() + chunk_timeout, self._total_deadline)
        return self._start_wait()

    def finish_exchange(self) -> bool:
        """End the exchange: whether the connection can carry another one."""
        reusable = (
            self.reader.reusable
            and self._transport is not None
            and not self._closed
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()  # else the server has answered before it was asked
        )
        self._buffered.clear()
        self._busy = False
        if self._waiter is not None:
            self._wake(RuntimeError("the response was closed"))
        if self._paused and reusable:
            self._resume_reading()
        return reusable

    def abort(self, failure: EngineError | None = None) -> None:
        """Close the socket now; an exchange in progress fails, with this unless it has failed already."""
        self._closed = True
        self._fail(failure or connection_reset())
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._closed:  # the owner gave up while connecting
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        sink, reader = self._sink, self.reader
        if sink is None:
            self._buffer_data(data)
            return
        piece = reader.feed(data)
        if piece:
            if self._chunk_timeout is not None:
                until = self._loop.time() + self._chunk_timeout
                self._deadline = until if until < self._total_deadline else self._total_deadline
            try:
                self.sink_done = sink(piece)
            except Exception as error:  # noqa: BLE001 - it goes to the one who waits
                self._wake(error)
                return
        if self.sink_done or reader.done:
            self._wake(None)
        if reader.malformed is not None:
            self._fail_malformed(reader.malformed)

    def _buffer_data(self, data: bytes) -> None:
        """Takes what comes while there is no sink for it."""
        if not self._busy:  # an answer to no question must never become one to the next
            self.abort()
            return
        self._buffered.append(self.reader.feed(data))
        self._unread_bytes += len(data)
        if self.reader.head_complete and self._waiter is not None:
            self._wake(None)
        if self._unread_bytes > self._high_water and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self.reader.malformed is not None:
            self._fail_malformed(self.reader.malformed)

    def _fail_malformed(self, reason: str) -> None:
        failure = broken_off()
        failure.__cause__ = ValueError(reason)
        self.abort(failure)

    def eof_received(self) -> None:
        self._closed = True  # returning None has the loop close the socket
        if self.reader.feed_eof():
            self._wake(None)
        else:
            self._fail(broken_off())

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._transport = None
        failure = broken_off() if exc is None else connection_reset()
        failure.__cause__ = exc
        self._fail(failure)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.reader.close()
        self._on_lost(self)

    # Inside.

    def _start_wait(self) -> Waiter:
        if self._timer is None or self._deadline < self._timer_at:
            self._set_timer()
        self._waiter = arrival = self._loop.create_future()
        return arrival

    def _wake(self, failure: Exception | None) -> None:
        arrival, self._waiter, self._sink = self._waiter, None, None
        if arrival is not None and not arrival.done():
            arrival.set_result(failure)

    def _fail(self, failure: EngineError) -> None:
        if self._busy and self._failure is None and not self.reader.done:
            self._failure = failure
            self._wake(failure)

    def _resume_reading(self) -> None:
        self._paused = False
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._timer_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._deadline - self._loop.time() > CLOCK_RESOLUTION:
            self._set_timer()
        else:
            self.abort(timed_out())
