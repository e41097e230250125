"""One connection of a client, in HTTP/1.1: whose turn it is, how long it may take, and how it ends.

Theory of operation. uvicorn listens, starts and stops; each connection is one of these. What comes is parsed into
requests, which wait in a queue; once all that came has been parsed, the first of them is begun, with as much of its
body as is there. It is begun within the same turn of the loop, and without a task (router.net.server.eager), so that an
answer that waits for nothing is there before anything else happens. What a client sends ahead is begun in a turn of its
own, since others want to be served meanwhile.

Reading never stops because of a request that waits for its turn, since a client that leaves is noticed only by reading;
where more waits than may, nothing more is taken, and the connection closes after the answers to what was taken, as
RFC 9112, section 9.3.2, lets a server do. An error response is never sent in the midst of another response; its body is
rendered by whoever made the server.
"""

import asyncio
import uuid
from collections import deque
from math import inf
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.utils import is_ssl
from uvicorn.server import ServerState

from router.net.server.connection_limit import ConnectionLimit
from router.net.server.cycle import STATUS_LINES, Cycle
from router.net.server.eager import EagerRunner
from router.net.server.errors import ProtocolError, RenderError
from router.net.server.request_parser import RequestParser, RequestQueue
from router.net.server.start_limiter import StartLimiter
from router.net.server.timeouts import ClientTimeouts
from router.net.server.write_batcher import BufferedWriter, WriteBatcher

MAX_PIPELINED_BYTES: Final = 256 * 1024
"""Bytes that a connection may send ahead while another of its requests is being answered."""


_CONNECTION_CLOSE: Final = b"connection: close\r\n"


def asgi_address(name: Any) -> tuple[str, int | None] | None:
    """An address as ASGI has it, from what a transport knows of a socket: asking the socket again costs far more."""
    if isinstance(name, tuple):
        return name[0], name[1]
    return (name, None) if name and isinstance(name, str) else None


class BoundedHttpProtocol(asyncio.Protocol):
    """One connection.

    - A client beyond the limit of connections gets 503, and loses its connection.
    - What must not be sent is refused, as Arriving has it, and a request that is not whole in time with 408. In each
      case the connection closes.
    - A client that leaves is noticed by the request that is being answered; the others are not begun.
    - A client that does not take its answer in time loses the connection.
    - What an application does before it first has to wait, it does without a task; see Runner.
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
    ) -> None:
        """What comes before `bounds` is what uvicorn gives to every protocol; what comes after it is that of all
        connections."""
        self._loop = _loop or asyncio.get_running_loop()
        self._config = config
        self._app: Any = config.loaded_app
        self._server_state = server_state
        self._timeouts = timeouts or ClientTimeouts()
        self._start_limiter = start_limiter or StartLimiter()
        self._write_batcher = write_batcher or WriteBatcher()
        self._connection_limit = connection_limit
        self._render_error = render_error
        self._keep_alive_timeout = config.timeout_keep_alive
        self._check_interval = min(self._timeouts.receive, self._keep_alive_timeout)
        self._default_headers_source: Any = None
        self._default_header_lines = (b"", False)
        self.completed_future: asyncio.Future[None] = self._loop.create_future()
        self.completed_future.set_result(None)
        self._queue: RequestQueue = deque()
        self._runner = EagerRunner(self._loop)
        self._active_cycle: Cycle | None = None  # whose answer is not whole
        self._read_closed = False
        self._pipelined_bytes = 0  # bytes that came while something was being answered
        self._writable = asyncio.Event()
        self._reading_paused = False
        self._seen_boundaries = 0
        self._waiting_since = 0.0  # when it became the client's turn to send, or to go on
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # -- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # it behaves as uvicorn's own
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
            self.respond_with_error(
                self._connection_limit.reject()
            )  # before it has asked: whoever is not read holds its descriptor
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
        self.resume_writing()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._read_closed:
            return
        arriving, queue = self._parser, self._queue
        if queue or (self._active_cycle is not None and self._active_cycle is not arriving.receiving_cycle):
            self._pipelined_bytes += len(data)
        try:
            arriving.feed(data)
        except ProtocolError as error:
            self._reject(error)
        else:
            if self._reading_paused and self._active_cycle is not arriving.receiving_cycle:
                self.resume_reading()  # the body is whole; only reading shows that the client leaves
            if self._pipelined_bytes > MAX_PIPELINED_BYTES and queue:
                self._close_after_responses()
            elif self._seen_boundaries != arriving.message_boundaries:
                self._seen_boundaries = arriving.message_boundaries
                if arriving.in_message:
                    self._waiting_since = self._loop.time()
        if queue:
            self._start_limiter.start(self._start_next, self._loop)

    # -- what is answered -------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        """Begins with the next request, if its turn has come."""
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
            if self.transport.get_write_buffer_size():
                self.pause_writing()
            return
        if self._reading_paused:
            self.resume_reading()
        if self._queue:
            self._loop.call_soon(self._start_next)
        if not self._parser.in_message:
            self._waiting_since = self._loop.time()

    def on_cycle_done(self, cycle: Cycle) -> None:
        if cycle.task is not None:
            self._server_state.tasks.discard(cycle.task)
            cycle.task = None

    def default_headers(self) -> tuple[bytes, bool]:
        headers = self._server_state.default_headers  # uvicorn makes them anew once a second, for the date
        if headers is not self._default_headers_source:
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self._default_headers_source, self._default_header_lines = headers, (lines, _CONNECTION_CLOSE in lines)
        return self._default_header_lines

    def shutdown(self) -> None:
        """The server stops: what has been begun is answered, and the connection closes then."""
        self._parser.closing = True
        if self._is_busy():
            self._close_after_responses()
        elif not self._parser.in_head:
            self._close()

    def _is_busy(self) -> bool:
        """Whether a request is being answered, or is to be."""
        return self._active_cycle is not None or bool(self._queue)

    # -- what is refused --------------------------------------------------------------------------------------------

    def _reject(self, error: ProtocolError) -> None:
        cycle = self._parser.receiving_cycle
        if self._is_unstarted(cycle):
            self._queue.pop()
        elif cycle is not None:
            if cycle.response_started:
                self._close()
            else:
                cycle.on_disconnect()
                self.respond_with_error(error)
            return
        if self._is_busy():
            self._close_after_responses()  # what is wrong came after the request that is being answered
        else:
            self.respond_with_error(error)

    def respond_with_error(self, error: ProtocolError) -> None:
        body = self._render_error(error)
        lines = [
            STATUS_LINES[error.status],
            self.default_headers()[0].replace(_CONNECTION_CLOSE, b""),
            b"x-request-id: %b\r\ncontent-type: application/json\r\n" % uuid.uuid4().hex.encode("ascii"),
            b"content-length: %d\r\n%b\r\n" % (len(body), _CONNECTION_CLOSE),
        ]
        if error.retry_after is not None:
            lines.insert(1, b"retry-after: %d\r\n" % error.retry_after)
        self.writer.write(b"".join([*lines, body]))
        self._close()

    def _close_after_responses(self) -> None:
        """Answers what has come whole, and closes the connection then."""
        cycle = self._parser.receiving_cycle
        if self._is_unstarted(cycle):
            self._queue.pop()
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
        self.writer.flush()
        self.transport.close()

    def _close(self) -> None:
        self._read_closed = True
        self._queue.clear()
        self.close()

    # -- flow -------------------------------------------------------------------------------------------------------

    def pause_reading(self, cycle: Cycle) -> None:
        if cycle is self._active_cycle and not self._reading_paused:
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
            self._write_timer = self._loop.call_later(self._timeouts.send, self.transport.abort)

    def resume_writing(self) -> None:
        self.writer.is_full = False
        self._writable.set()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    async def drain(self) -> None:
        await self._writable.wait()

    # -- seconds ----------------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        """When the client must have gone on, if it is for him to go on."""
        if self._read_closed or (self._is_busy() and not self._parser.in_message):
            return inf
        is_idle = self._parser.message_boundaries and not self._parser.in_message
        return self._waiting_since + (self._keep_alive_timeout if is_idle else self._timeouts.receive)

    def _check_deadlines(self) -> None:
        """Looks at the clock when something is due, and so often that nothing can become due earlier than that.

        One timer that is late to learn costs less than one that is set and unset at every request.
        """
        now, due = self._loop.time(), self._deadline()
        if now >= due:
            if self._parser.in_message:
                self._reject(ProtocolError(408, "request_timeout"))
            elif self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self._close()
        if not self.transport.is_closing():
            self._deadline_timer = self._loop.call_later(
                min(max(0.0, due - now), self._check_interval), self._check_deadlines
            )
