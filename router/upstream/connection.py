"""One connection to an engine: an asyncio protocol that carries one exchange after the other.

Everything that happens on the socket ends in `data_received`, `eof_received` or `connection_lost`. They feed the
reader, note a failure if there is one, and wake whoever waits. Who waits looks at the reader, then at the failure, and
waits again:

    while not (something to take):
        connection.check()          raises what went wrong, as an httpx error that carries the request
        await connection.more()     bytes came, or the end, or a failure

A connection has one read timer at most, and it is late on purpose: a wait only notes its deadline, and the timer, when
it fires, sets itself again for what is left. So a stream of a thousand chunks costs no timer but the one that was
running anyway.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

import httpx

from router.upstream.http1 import ResponseReader

Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port."""

CLOCK_RESOLUTION = 0.001
"""Seconds; uvloop's clock counts milliseconds, so its timers fire up to one early."""


class Connection(asyncio.Protocol):
    """A socket to an origin.

    - `begin` starts an exchange and `finish` ends it, telling whether the connection can carry another.
    - `usable` is false once either side has closed, and once bytes came that nobody asked for.
    - `stale`: the connection had served before, and died under this exchange before any byte of its response came.
    - Reading pauses while more than `high_water` bytes wait unread.
    - `on_lost` is called once, when the socket is closed.
    """

    __slots__ = (
        "_closed",
        "_deadline",
        "_drained",
        "_exchanges",
        "_failure",
        "_high_water",
        "_loop",
        "_on_lost",
        "_paused",
        "_read_timeout",
        "_request",
        "_timer",
        "_timer_at",
        "_transport",
        "_unread",
        "_waiter",
        "origin",
        "reader",
        "sent",
    )

    def __init__(
        self,
        origin: Origin,
        loop: asyncio.AbstractEventLoop,
        *,
        high_water: int,
        max_head: int,
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self.origin = origin
        self.reader = ResponseReader(max_head=max_head)
        self.sent = False  # the whole request is written
        self._loop = loop
        self._high_water = high_water
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._exchanges = 0
        self._request: httpx.Request | None = None
        self._failure: tuple[type[httpx.TransportError], str, BaseException | None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None  # there while the socket takes no more
        self._unread = 0  # bytes that came since the reader was last emptied
        self._paused = False
        self._read_timeout: float | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # What the owner does with it.

    @property
    def usable(self) -> bool:
        return not self._closed and self._transport is not None and not self._transport.is_closing()

    @property
    def stale(self) -> bool:
        return self._closed and self._exchanges > 1 and self.reader.untouched

    @property
    def is_open(self) -> bool:
        """Whether there is a socket, which `on_lost` will be called for."""
        return self._transport is not None

    def begin(self, request: httpx.Request, read_timeout: float | None) -> None:
        """Start an exchange; `read_timeout` in seconds."""
        self.reader.begin(bodiless=request.method == "HEAD")
        self.sent = False
        self._request = request
        self._read_timeout = read_timeout
        self._exchanges += 1
        self._unread = 0
        if not self.usable:
            self.abort(httpx.RemoteProtocolError, "the server closed the connection before the request was sent")

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closed:
            self._transport.write(data)

    async def drain(self, seconds: float | None) -> None:
        """Wait until the socket takes more; `httpx.WriteTimeout` after so many seconds."""
        if self._drained is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._drained)
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"nothing could be sent for {seconds} s", request=self._request) from error

    def more(self) -> asyncio.Future[None]:
        """A future that is done when something has come: bytes, the end, or a failure."""
        if self._waiter is not None:
            raise RuntimeError("another task is already reading this response")
        waiter = self._waiter = self._loop.create_future()
        if self._read_timeout is not None:
            self._deadline = self._loop.time() + self._read_timeout
            if self._timer is None or self._deadline < self._timer_at:
                self._set_timer()
        return waiter

    def check(self) -> None:
        """Raise what has gone wrong with this exchange, if something has."""
        if self._failure is not None:
            kind, message, cause = self._failure
            raise kind(message, request=self._request) from cause

    def take(self) -> bytes:
        """The body that waits, as one object; reading goes on if it had paused."""
        self._unread = 0
        if self._paused:
            self._resume()
        return self.reader.take()

    def finish(self) -> bool:
        """End the exchange: whether the connection can carry another one."""
        reusable = self.sent and self.reader.reusable and self.usable
        self.reader.chunks.clear()
        self._request = self._failure = None
        self._wake()
        if self._paused and reusable:
            self._resume()
        return reusable

    def abort(
        self, kind: type[httpx.TransportError] = httpx.ReadError, message: str = "the connection was closed"
    ) -> None:
        """Close the socket now; an exchange in progress fails with this error, unless it has failed already."""
        self._closed = True
        self._fail(kind, message)
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._closed:  # the owner gave up while connecting
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._request is None:  # an answer to no question must never become one to the next
            self.abort()
            return
        reader = self.reader
        reader.feed(data)
        if reader.malformed is not None:
            self.abort(httpx.RemoteProtocolError, f"malformed response: {reader.malformed}")
            return
        self._unread += len(data)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        elif self._unread > self._high_water and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._closed = True  # returning None has the loop close the socket
        if not self.reader.end():
            self._fail(httpx.RemoteProtocolError, "the server closed the connection before the response was complete")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._transport = None
        if exc is not None:
            self._fail(httpx.ReadError, str(exc) or type(exc).__name__, exc)
        else:
            self._fail(httpx.RemoteProtocolError, "the connection was lost before the response was complete")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.reader.close()
        self.resume_writing()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    # Inside.

    def _fail(self, kind: type[httpx.TransportError], message: str, cause: BaseException | None = None) -> None:
        if self._request is not None and self._failure is None and not self.reader.done:
            self._failure = (kind, message, cause)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _resume(self) -> None:
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
            self.abort(httpx.ReadTimeout, f"no bytes for {self._read_timeout} s")
