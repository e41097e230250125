"""One connection to an engine: an asyncio protocol that carries one exchange after the other.

The event loop enters through `data_received`, `eof_received` and `connection_lost`. They feed the response reader, pass
its output on, and record a failure if there is one. A caller waits at most twice per exchange: for the head, and for
the end of the body or as much of it as its sink wants. Chunks between these two need no future and wake no task: the
sink is called directly from `data_received`.

A connection has at most one timer, and the timer is lazy. A wait only records its deadline, and a chunk only when it
came. When the timer fires too early for the current deadline, possibly that of a later exchange, it is set again for
the remaining time. So neither a stream of a thousand chunks nor a connection that serves a thousand requests creates a
timer for each of them. When a limit for silence has passed, a Watch may allow more.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from router.net.client.errors import EngineError, broken_off, connection_reset, timed_out
from router.net.client.http1 import ResponseReader
from router.net.client.target import Origin
from router.net.client.watch import Watch

Sink: TypeAlias = Callable[[bytes], bool]
"""Takes a chunk of a body, which is never empty. Returns True once it needs no more."""

Waiter: TypeAlias = asyncio.Future[Exception | None]
"""Completes with None, or with the exception that ended the wait as its result; it does not raise it."""

_CLOSED: Final = ("broken-off", "reset")  # EngineError.reason of a connection that the server may have closed

CLOCK_RESOLUTION: Final = 0.001
"""Seconds. uvloop's clock counts milliseconds, so a timer may fire up to one millisecond early."""


class HTTPConnection(asyncio.Protocol):
    """A socket to an origin.

    - `send_request` starts an exchange and waits for the response's head; `stream_to` waits for its body;
      `finish_exchange` ends it and returns whether the connection can carry another. There is one wait at a time.
    - No wait lasts beyond `deadline`, until `stream_to` sets a timeout per chunk, unless the exchange has a watch that
      allows more; and none lasts beyond `total_deadline`. Both are instants of the loop's clock.
    - `heard_at`: when the last chunk came, or the request was sent.
    - `usable` is false once either side has closed, and once unexpected bytes came while the connection was idle.
    - `closed_while_idle`: a reused connection that failed before any byte of this exchange's response came.
    - Reading pauses while more than `high_water` bytes are unread.
    - `on_lost` is called once, when the socket is closed.
    """

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
        self.connect_seconds: float | None = None
        self.reader = ResponseReader(max_head=max_head)
        self.sink_done = False  # the sink needs no more
        self.heard_at = 0.0
        self._watch: Watch | None = None
        self._find_bound: Callable[[], bool] | None = None
        self._deadline = self._total_deadline = self._head_limit = 0.0
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
        self._buffered: list[bytes] = []  # body received while there was no sink
        self._unread_bytes = 0  # all bytes received since then, heads and chunk sizes included
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # Called by the transport and the response.

    @property
    def usable(self) -> bool:
        return not self._closed and self._transport is not None and not self._transport.is_closing()

    @property
    def closed_while_idle(self) -> bool:
        # A timeout is no sign that the server has closed the connection, nor is what its watch finds.
        failure = self._failure
        return (
            failure is not None
            and failure.reason in _CLOSED
            and self._exchange_count > 1
            and self.reader.nothing_received
        )

    @property
    def is_first_exchange(self) -> bool:
        return self._exchange_count == 1

    @property
    def is_consumed(self) -> bool:
        return self.reader.done and not any(self._buffered)

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def has_response(self) -> bool:
        return not self.reader.nothing_received

    def is_bound(self) -> bool:
        return self._find_bound is not None and self._find_bound()

    def send_request(
        self, request: bytes, deadline: float, total_deadline: float, watch: Watch | None = None
    ) -> Waiter:
        if self._transport is None or self._closed:
            raise broken_off()
        self.reader.begin()
        self._busy = True
        self._exchange_count += 1
        self._failure = None
        self._buffered.clear()
        self._unread_bytes = 0
        self.heard_at = now = self._loop.time()
        self._deadline, self._total_deadline = deadline, total_deadline
        self._head_limit, self._chunk_timeout = deadline - now, None
        self._watch = watch
        if watch is not None:
            watch.begin(self)
        self._transport.write(request)
        return self._start_wait()

    def stream_to(self, sink: Sink, chunk_timeout: float | None = None) -> Waiter | None:
        """Pass the body to `sink` as it arrives, until the sink needs no more or the body ends.

        `chunk_timeout`: seconds allowed for each chunk from now on. Returns None where there is nothing to wait for. An
        exception from the sink, or a failure, becomes the result of the wait; a failure that has already happened is
        raised.
        """
        if self._waiter is not None:
            raise RuntimeError("another task is already reading this response")
        reader = self.reader
        buffered, self._buffered = b"".join(self._buffered), []
        # Buffered data goes first and before any failure: what arrived before a broken connection is still delivered.
        self.sink_done = bool(buffered) and sink(buffered)
        self._unread_bytes = 0
        if self._paused:
            self._resume_reading()
        if self.sink_done or reader.done:
            return None
        if self._failure is not None:
            raise self._failure
        self._sink, self._chunk_timeout = sink, chunk_timeout
        if chunk_timeout is not None:
            self.heard_at = self._loop.time()  # the caller may have waited before it reads on
            self._deadline = min(self.heard_at + chunk_timeout, self._total_deadline)
        return self._start_wait()

    def bind_if(self, is_bound: Callable[[], bool]) -> None:
        """`is_bound`: see WatchedExchange; until this call, the exchange is not bound. It counts for this exchange."""
        self._find_bound = is_bound

    def unwatch(self) -> None:
        """What comes now is not what the watch is for."""
        self._find_bound = None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end(self)

    def finish_exchange(self) -> bool:
        self.unwatch()
        reusable = (
            self.reader.reusable
            and self._transport is not None
            and not self._closed
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()  # else the response came before the request was all sent
        )
        self._buffered.clear()
        self._busy = False
        if self._waiter is not None:
            self._wake(RuntimeError("the response was closed"))
        if self._paused and reusable:
            self._resume_reading()
        return reusable

    def abort(self, failure: EngineError | None = None) -> None:
        """Close the socket now. An exchange in progress fails with `failure`, unless it has failed already."""
        self._closed = True
        self._fail(failure or connection_reset())
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._closed:  # the transport gave up while connecting
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        # Runs for every chunk: without a future, a task or a timer.
        sink, reader = self._sink, self.reader
        if sink is None:
            self._buffer_data(data)
            return
        chunk = reader.feed(data)
        if chunk:
            self.heard_at = self._loop.time()
            try:
                self.sink_done = sink(chunk)
            except Exception as error:  # noqa: BLE001 - the waiting task raises it
                self._wake(error)
                return
        if self.sink_done or reader.done:
            self._wake(None)
        # After the wake-up: a wait that succeeded with this read is not failed by what follows in it.
        if reader.malformed is not None:
            self._fail_malformed(reader.malformed)

    def _buffer_data(self, data: bytes) -> None:
        if not self._busy:  # bytes without a request must never become the response to the next one
            self.abort()
            return
        self.heard_at = self._loop.time()
        self._buffered.append(self.reader.feed(data))
        self._unread_bytes += len(data)
        if self.reader.head_complete and self._waiter is not None:
            self._wake(None)
        # Without a sink, the engine must not fill the router's memory.
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
        self._closed = True  # the loop closes the socket since this returns None
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

    # Internal.

    def _start_wait(self) -> Waiter:
        # A timer that fires before the deadline needs no change: `_on_timer` sets it again.
        if self._timer is None or self._deadline < self._timer_at:
            self._set_timer()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self, failure: Exception | None) -> None:
        waiter, self._waiter, self._sink = self._waiter, None, None
        if waiter is not None and not waiter.done():
            waiter.set_result(failure)

    def _fail(self, failure: EngineError) -> None:
        # A complete response stays valid when its connection breaks afterwards; of several failures the first counts.
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
        if self._waiter is None:  # the next wait sets a timer if it needs one
            return
        watch, limit, total = self._watch, self._chunk_timeout, self._total_deadline
        if limit is not None:
            self._deadline = min(self.heard_at + limit, total)
        if self._deadline - self._loop.time() <= CLOCK_RESOLUTION:
            if watch is not None:
                if limit is None:
                    limit = self._head_limit
                self._deadline = min(watch.silent_until(self, limit), total)
            if self._deadline - self._loop.time() <= CLOCK_RESOLUTION:
                self.abort(watch.timed_out(self) if watch is not None else timed_out())
                return
        self._set_timer()
