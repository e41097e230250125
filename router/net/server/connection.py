"""One HTTP/1.1 connection of a client: the order of its requests, its deadlines, and how it closes.

Theory of operation. uvicorn listens, starts and stops; it creates one BoundedHttpProtocol for each connection. Received
bytes are parsed into requests, which wait in a queue. After all received bytes are parsed, the first request starts,
with as much of its body as has arrived. It starts in the same iteration of the event loop and without a task
(router.net.server.eager), so a response that waits for nothing is sent before anything else runs. Each pipelined
request starts in a loop iteration of its own, so that other connections are served in between.

Reading continues while requests are queued, because only reading shows that the client has disconnected. When too many
requests or bytes are queued, the connection reads nothing more and closes after the responses to the requests that it
has accepted (RFC 9112, section 9.3.2, allows this). An error response is never sent in the middle of another response.
Its body is rendered by `render_error`, a parameter.
"""

import asyncio
import uuid
from collections import deque
from math import inf
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.utils import is_ssl
from uvicorn.server import ServerState

from router.net.server.client_connection import NextProtocol
from router.net.server.connection_limit import ConnectionLimit
from router.net.server.cycle import STATUS_LINES, Cycle
from router.net.server.eager import EagerRunner
from router.net.server.errors import ErrorHeaders, ProtocolError, RenderError
from router.net.server.request_parser import RequestParser, RequestQueue
from router.net.server.start_limiter import StartLimiter
from router.net.server.timeouts import ClientTimeouts
from router.net.server.write_batcher import BufferedWriter, WriteBatcher

MAX_PIPELINED_BYTES: Final = 256 * 1024
"""Bytes that a client may send ahead while another of its requests is being answered."""

_CONNECTION_CLOSE: Final = b"connection: close\r\n"


def asgi_address(name: Any) -> tuple[str, int | None] | None:
    """A transport's address in ASGI's form. A transport caches it; asking the socket is a system call."""
    if isinstance(name, tuple):
        return name[0], name[1]
    return (name, None) if name and isinstance(name, str) else None


class _DefaultHeaders:
    """The header lines of every response, and whether `connection: close` is among them; joined once for all clients.

    uvicorn replaces its list once a second, for the date; joining it for every response would cost more.
    """

    def __init__(self) -> None:
        self._source: Any = None
        self._joined = (b"", False)

    def joined(self, headers: Any) -> tuple[bytes, bool]:
        if headers is not self._source:
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self._source, self._joined = headers, (lines, _CONNECTION_CLOSE in lines)
        return self._joined


_DEFAULT_HEADERS: Final = _DefaultHeaders()


class BoundedHttpProtocol(asyncio.Protocol):
    """One connection.

    - A client beyond the connection limit gets 503, and its connection closes.
    - What RequestParser refuses gets its status; a request that does not arrive completely in time gets 408. Both close
      the connection.
    - When the client disconnects, the active request is notified; queued requests are not started.
    - When the client does not read its response in time, the connection is aborted.
    - An application runs without a task until its first wait; see EagerRunner.
    """

    transport: asyncio.Transport
    writer: BufferedWriter
    _parser: RequestParser

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        timeouts: ClientTimeouts | None = None,
        start_limiter: StartLimiter | None = None,
        write_batcher: WriteBatcher | None = None,
        connection_limit: ConnectionLimit | None = None,
        render_error: RenderError,
        error_headers: ErrorHeaders | None = None,
    ) -> None:
        """uvicorn passes the parameters before `timeouts`; those after it are shared by all connections."""
        self._loop = _loop or asyncio.get_running_loop()
        self._config = config
        self._app: Any = config.loaded_app
        self._server_state = server_state
        self._timeouts = timeouts or ClientTimeouts()
        self._start_limiter = start_limiter or StartLimiter()
        self._write_batcher = write_batcher or WriteBatcher()
        self._connection_limit = connection_limit
        self._render_error = render_error
        self._error_headers = error_headers
        self._check_interval = min(self._timeouts.receive, self._timeouts.keep_alive)
        # `send` returns this one future whenever there is nothing to await.
        self.completed_future: asyncio.Future[None] = self._loop.create_future()
        self.completed_future.set_result(None)
        self._queue: RequestQueue = deque()
        self._runner = EagerRunner(self._loop)
        self._active_cycle: Cycle | None = None  # whose response is not complete
        self._waits_for_start = False
        self._read_closed = False
        self._pipelined_bytes = 0  # bytes received while another request was being answered
        self._writable = asyncio.Event()
        self._reading_paused = False
        self._seen_boundaries = 0
        self._waiting_since = 0.0  # since when the connection waits for the client to send
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # -- connection -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # has uvicorn's interface
        self.transport = transport
        self.writer = BufferedWriter(transport, self._write_batcher, self._loop)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "server": asgi_address(transport.get_extra_info("sockname")),
            "client": asgi_address(transport.get_extra_info("peername")),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": self._config.root_path,
        }
        self._parser = RequestParser(self, scope, self._queue)
        self._waiting_since = self._loop.time()
        if (
            self._connection_limit is not None
            and len(self._server_state.connections) > self._connection_limit.max_connections
        ):
            # Rejected before its request is read: a connection that sends nothing would keep its descriptor.
            self.respond_with_error(self._connection_limit.reject())
            return
        self._check_deadlines()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._read_closed = True
        self._queue.clear()
        self.writer.discard()
        self._parser.close()
        if self._active_cycle is not None:
            self._active_cycle.on_disconnect()
        # Ends every `drain` that still waits, and cancels the send timer.
        self.resume_writing()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._read_closed:
            return
        parser, queue = self._parser, self._queue
        # The body of the current request has its own limits; anything else is sent ahead.
        current = self._current_cycle()
        if current is not None and current is not parser.receiving_cycle:
            self._pipelined_bytes += len(data)
        try:
            parser.feed(data)
        except ProtocolError as error:
            self._reject(error)
        else:
            if self._reading_paused and self._current_cycle() is not parser.receiving_cycle:
                self.resume_reading()  # the body is complete, and only reading shows a disconnect
            if self._pipelined_bytes > MAX_PIPELINED_BYTES and queue:
                self._close_after_responses()
            elif self._seen_boundaries != parser.message_boundaries:
                self._seen_boundaries = parser.message_boundaries
                if parser.in_message:
                    # A new message has begun: its time to arrive starts now.
                    self._waiting_since = self._loop.time()
        if queue and self._active_cycle is None and not self._waits_for_start:
            self._waits_for_start = True
            self._start_limiter.start(self._start_next, self._loop)

    def _current_cycle(self) -> Cycle | None:
        """The active request, or the one that starts next, whose body may be arriving already."""
        if self._active_cycle is None and self._queue:
            return self._queue[0][0]
        return self._active_cycle

    # -- responses --------------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        self._waits_for_start = False
        if self._active_cycle is not None or not self._queue:
            return
        self._active_cycle, scope = cycle, _ = self._queue.popleft()
        if not self._queue:
            self._pipelined_bytes = 0
        self._runner.start(self._app(scope, cycle.receive, cycle.send), cycle.on_task_started, cycle.on_app_done)

    def track_task(self, task: "asyncio.Task[None]") -> None:
        self._server_state.tasks.add(task)

    def on_response_complete(self, cycle: Cycle) -> None:
        self._active_cycle = None
        if not cycle.keep_alive:
            self._close()
            # A closing transport waits for the client without a limit: the send timer bounds that.
            if self.transport.get_write_buffer_size():
                self.pause_writing()
            return
        if self._reading_paused:
            self.resume_reading()
        if self._queue:
            # Not a direct call: this runs within a step of the application (see EagerRunner), and a client that
            # pipelines must not keep other connections waiting.
            self._loop.call_soon(self._start_next)
        if not self._parser.in_message:
            self._waiting_since = self._loop.time()

    def on_cycle_done(self, cycle: Cycle) -> None:
        if cycle.task is not None:
            self._server_state.tasks.discard(cycle.task)
            cycle.task = None

    def switch_protocol(self, cycle: Cycle, head: bytes, protocol: NextProtocol) -> bool:
        if (
            cycle is not self._active_cycle
            or cycle.response_started
            or self._queue
            or self._parser.in_message
            or self._read_closed
            or self._parser.closing
            or self.writer.is_full
            or self.transport.is_closing()
        ):
            return False
        # What is pending belongs to responses before this one.
        self.writer.flush()
        cycle.response_started = cycle.response_complete = self._read_closed = True
        self._active_cycle = None
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._parser.close()
        connections: Any = self._server_state.connections
        connections.discard(self)
        connections.add(protocol)
        # In this order: the other protocol has to learn if the transport is full after the head.
        self.transport.set_protocol(protocol)
        self.transport.write(head)
        protocol.attach(self.transport, connections, self._server_state.tasks)
        return True

    def default_headers(self) -> tuple[bytes, bool]:
        return _DEFAULT_HEADERS.joined(self._server_state.default_headers)

    def shutdown(self) -> None:
        """The server stops: requests that have begun to arrive are answered, then the connection closes."""
        self._parser.closing = True
        if self._is_busy():
            self._close_after_responses()
        # A request whose head is arriving is answered; `closing` makes it the last.
        elif not self._parser.in_head:
            self._close()

    def _is_busy(self) -> bool:
        return self._active_cycle is not None or bool(self._queue)

    # -- rejection --------------------------------------------------------------------------------------------------

    def _reject(self, error: ProtocolError) -> None:
        cycle = self._parser.receiving_cycle
        # Three cases: a queued request is dropped; the active one gets the error if its response has not started;
        # otherwise the error is in bytes that belong to no request yet.
        headers = self._parser.partial_headers
        if self._is_unstarted(cycle):
            headers = self._queue.pop()[1]["headers"]
        elif cycle is not None:
            if cycle.response_started:
                self._close()
            else:
                cycle.on_disconnect()
                self.respond_with_error(error)
            return
        if self._is_busy():
            self._close_after_responses()  # the error came after the requests that are being answered
        else:
            self.respond_with_error(error, headers)

    def respond_with_error(self, error: ProtocolError, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        """`headers`: those of the request, if the application has not seen it."""
        body = self._render_error(error)
        cycle = self._active_cycle
        if cycle is not None:
            extra = cycle.extra_headers
        else:
            extra = self._error_headers(headers or []) if self._error_headers is not None else b""
        # The default headers hold `connection: close` while the server drains, and it must not stand there twice.
        lines = [
            STATUS_LINES[error.status],
            self.default_headers()[0].replace(_CONNECTION_CLOSE, b""),
            b"x-request-id: %b\r\ncontent-type: application/json\r\n" % uuid.uuid4().hex.encode("ascii"),
            b"content-length: %d\r\n%b%b\r\n" % (len(body), extra, _CONNECTION_CLOSE),
        ]
        if error.retry_after is not None:
            lines.insert(1, b"retry-after: %d\r\n" % error.retry_after)
        self.writer.write(b"".join([*lines, body]))
        self._close()

    def _close_after_responses(self) -> None:
        """Answers the requests that have arrived completely, and the active one; then closes the connection."""
        cycle = self._parser.receiving_cycle
        if self._is_unstarted(cycle):
            self._queue.pop()
        # The active request may still be receiving its body.
        if cycle is None or cycle is not self._active_cycle:
            self._read_closed = True
        last = self._queue[-1][0] if self._queue else self._active_cycle
        if last is not None:
            last.keep_alive = False
        else:
            self._close()

    def _is_unstarted(self, cycle: Cycle | None) -> bool:
        return bool(self._queue) and self._queue[-1][0] is cycle

    def close(self) -> None:
        self.writer.flush()  # a transport sends what it has before it closes, but it does not know the writer's buffer
        self.transport.close()

    def _close(self) -> None:
        self._read_closed = True
        self._queue.clear()
        self.close()

    # -- flow control -----------------------------------------------------------------------------------------------

    def pause_reading(self, cycle: Cycle) -> None:
        if cycle is self._current_cycle() and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writer.is_full = True
        self._writable.clear()
        if self._write_timer is None:
            # A client that reads nothing would hold its response in memory, and the generation that feeds it.
            self._write_timer = self._loop.call_later(self._timeouts.send, self.transport.abort)

    def resume_writing(self) -> None:
        self.writer.is_full = False
        self._writable.set()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    async def drain(self) -> None:
        await self._writable.wait()

    # -- deadlines --------------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        """The deadline of what the client has to send; infinite while the connection waits for the server."""
        if self._read_closed or (self._is_busy() and not self._parser.in_message):
            return inf
        is_idle = self._parser.message_boundaries and not self._parser.in_message
        # The first request has the receive timeout from the start: a client that connects should send.
        return self._waiting_since + (self._timeouts.keep_alive if is_idle else self._timeouts.receive)

    def extend_receive(self, seconds: float) -> None:
        # Never beyond now: a client that was fast gets no credit to be silent with.
        self._waiting_since = min(self._loop.time(), self._waiting_since + seconds)

    def _check_deadlines(self) -> None:
        """Enforces the deadline, and sets the timer for the next check.

        The timer is not reset at each request: that would cost more than a check that finds nothing due. No deadline
        can come sooner than `_check_interval` from now, so that is the longest time between two checks.
        """
        now, due = self._loop.time(), self._deadline()
        if now >= due:
            if self._parser.in_message:
                self._reject(ProtocolError(408, "request_timeout"))
            elif self.transport.get_write_buffer_size():
                # Idle, but the last response is not read: closing would wait for it.
                self.transport.abort()
            else:
                self._close()
        if self.transport.is_closing():
            # It closes once all is sent, which a client that does not read would prevent.
            self._deadline_timer = self._loop.call_later(self._timeouts.send, self.transport.abort)
        else:
            self._deadline_timer = self._loop.call_later(
                min(max(0.0, due - now), self._check_interval), self._check_deadlines
            )
