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
from router.net.server.eager import Runner
from router.net.server.errors import ProtocolError, RenderError
from router.net.server.request_parser import Arriving, Queue
from router.net.server.start_limiter import Turns
from router.net.server.timeouts import Bounds
from router.net.server.write_batcher import Outbox, Sender

MAX_WAITING: Final = 256 * 1024
"""Bytes that a connection may send ahead while another of its requests is being answered."""


_CLOSE: Final = b"connection: close\r\n"


def address_of(name: Any) -> tuple[str, int | None] | None:
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
    sender: Sender
    _arriving: Arriving

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None, *, bounds: Bounds | None = None, turns: Turns | None = None,
        outbox: Outbox | None = None, limit: ConnectionLimit | None = None, render_error: RenderError,
    ) -> None:  # fmt: skip
        """What comes before `bounds` is what uvicorn gives to every protocol; what comes after it is that of all
        connections."""
        self._loop = _loop or asyncio.get_running_loop()
        self._config = config
        self._app: Any = config.loaded_app
        self._server = server_state
        self._bounds = bounds or Bounds()
        self._turns = turns or Turns()
        self._outbox = outbox or Outbox()
        self._limit = limit
        self._render_error = render_error
        self._idle = config.timeout_keep_alive
        self._period = min(self._bounds.receive, self._idle)
        self._defaults_of: Any = None
        self._defaults = (b"", False)
        self.sent: asyncio.Future[None] = self._loop.create_future()
        self.sent.set_result(None)
        self._queue: Queue = deque()
        self._runner = Runner(self._loop)
        self._serving: Cycle | None = None  # whose answer is not whole
        self._deaf = False
        self._ahead = 0  # bytes that came while something was being answered
        self._room = asyncio.Event()
        self._paused = False
        self._steps = 0
        self._since = 0.0  # when it became the client's turn to send, or to go on
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # -- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._server.connections.add(self)  # type: ignore[arg-type]  # it behaves as uvicorn's own
        self.transport = transport
        self.sender = Sender(transport, self._outbox, self._loop)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "server": address_of(transport.get_extra_info("sockname")),
            "client": address_of(transport.get_extra_info("peername")),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": self._config.root_path,
        }
        self._arriving = Arriving(self, scope, self._queue)
        self._since = self._loop.time()
        if self._limit is not None and len(self._server.connections) > self._limit.most:
            self.answer(self._limit.refuse())  # before it has asked: whoever is not read holds its descriptor
            return
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._deaf = True
        self._queue.clear()
        self.sender.drop()
        self._arriving.close()
        if self._serving is not None:
            self._serving.leave()
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        arriving, queue = self._arriving, self._queue
        if queue or (self._serving is not None and self._serving is not arriving.cycle):
            self._ahead += len(data)
        try:
            arriving.feed(data)
        except ProtocolError as error:
            self._refuse(error)
        else:
            if self._paused and self._serving is not arriving.cycle:
                self.resume_reading()  # the body is whole; only reading shows that the client leaves
            if self._ahead > MAX_WAITING and queue:
                self._take_no_more()
            elif self._steps != arriving.steps:
                self._steps = arriving.steps
                if arriving.in_message:
                    self._since = self._loop.time()
        if queue:
            self._turns.begin(self._begin, self._loop)

    # -- what is answered -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begins with the next request, if its turn has come."""
        if self._serving is not None or not self._queue:
            return
        self._serving, scope = cycle, _ = self._queue.popleft()
        if not self._queue:
            self._ahead = 0
        self._runner.begin(self._app(scope, cycle.receive, cycle.send), cycle.works, cycle.ended)

    def works(self, task: "asyncio.Task[None]") -> None:
        self._server.tasks.add(task)

    def answered(self, cycle: Cycle) -> None:
        self._serving = None
        if not cycle.keep_alive:
            self._close()
            if self.transport.get_write_buffer_size():
                self.pause_writing()
            return
        if self._paused:
            self.resume_reading()
        if self._queue:
            self._loop.call_soon(self._begin)
        if not self._arriving.in_message:
            self._since = self._loop.time()

    def ended(self, cycle: Cycle) -> None:
        if cycle.task is not None:
            self._server.tasks.discard(cycle.task)
            cycle.task = None

    def defaults(self) -> tuple[bytes, bool]:
        headers = self._server.default_headers  # uvicorn makes them anew once a second, for the date
        if headers is not self._defaults_of:
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self._defaults_of, self._defaults = headers, (lines, _CLOSE in lines)
        return self._defaults

    def shutdown(self) -> None:
        """The server stops: what has been begun is answered, and the connection closes then."""
        self._arriving.stops = True
        if self._is_busy():
            self._take_no_more()
        elif not self._arriving.in_head:
            self._close()

    def _is_busy(self) -> bool:
        """Whether a request is being answered, or is to be."""
        return self._serving is not None or bool(self._queue)

    # -- what is refused --------------------------------------------------------------------------------------------

    def _refuse(self, error: ProtocolError) -> None:
        cycle = self._arriving.cycle
        if self._is_unbegun(cycle):
            self._queue.pop()
        elif cycle is not None:
            if cycle.begun:
                self._close()
            else:
                cycle.leave()
                self.answer(error)
            return
        if self._is_busy():
            self._take_no_more()  # what is wrong came after the request that is being answered
        else:
            self.answer(error)

    def answer(self, error: ProtocolError) -> None:
        body = self._render_error(error)
        lines = [
            STATUS_LINES[error.status],
            self.defaults()[0].replace(_CLOSE, b""),
            b"x-request-id: %b\r\ncontent-type: application/json\r\n" % uuid.uuid4().hex.encode("ascii"),
            b"content-length: %d\r\n%b\r\n" % (len(body), _CLOSE),
        ]
        if error.retry_after is not None:
            lines.insert(1, b"retry-after: %d\r\n" % error.retry_after)
        self.sender.write(b"".join([*lines, body]))
        self._close()

    def _take_no_more(self) -> None:
        """Answers what has come whole, and closes the connection then."""
        cycle = self._arriving.cycle
        if self._is_unbegun(cycle):
            self._queue.pop()
        if cycle is None or cycle is not self._serving:
            self._deaf = True
        last = self._queue[-1][0] if self._queue else self._serving
        if last is not None:
            last.keep_alive = False
        else:
            self._close()

    def _is_unbegun(self, cycle: Cycle | None) -> bool:
        return bool(self._queue) and self._queue[-1][0] is cycle

    def close(self) -> None:
        self.sender.flush()
        self.transport.close()

    def _close(self) -> None:
        self._deaf = True
        self._queue.clear()
        self.close()

    # -- flow -------------------------------------------------------------------------------------------------------

    def pause_reading(self, cycle: Cycle) -> None:
        if cycle is self._serving and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.sender.is_full = True
        self._room.clear()
        if self._stalled is None:
            self._stalled = self._loop.call_later(self._bounds.send, self.transport.abort)

    def resume_writing(self) -> None:
        self.sender.is_full = False
        self._room.set()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    async def drain(self) -> None:
        await self._room.wait()

    # -- seconds ----------------------------------------------------------------------------------------------------

    def _due(self) -> float:
        """When the client must have gone on, if it is for him to go on."""
        if self._deaf or (self._is_busy() and not self._arriving.in_message):
            return inf
        is_idle = self._arriving.steps and not self._arriving.in_message
        return self._since + (self._idle if is_idle else self._bounds.receive)

    def _look(self) -> None:
        """Looks at the clock when something is due, and so often that nothing can become due earlier than that.

        One timer that is late to learn costs less than one that is set and unset at every request.
        """
        now, due = self._loop.time(), self._due()
        if now >= due:
            if self._arriving.in_message:
                self._refuse(ProtocolError(408, "request_timeout"))
            elif self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self._close()
        if not self.transport.is_closing():
            self._timer = self._loop.call_later(min(max(0.0, due - now), self._period), self._look)
