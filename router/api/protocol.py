"""The server's side of HTTP/1.1: a connection, with a bound on all that a client may send and on how long it may take.

Theory of operation. uvicorn listens, starts and stops; each connection is one of these. What comes goes through
httptools' parser; each request in it becomes a cycle and waits in a queue, and only then, once all that came has been
parsed, is the first of them begun, with as much of its body as is there. It is begun within the same turn of the loop,
and without a task, so that an answer that needs no waiting is there before anything else happens (router.api.running).
Whatever was sent ahead of its turn is begun in a turn of its own, since others want to be served meanwhile.

A request has a bounded head, bounded seconds to arrive, and a bound on what is neither head nor body (chunks'
extensions, trailers). Reading never stops because of a request that waits for its turn, since a client that leaves is
noticed only by reading; where more waits than may, nothing more is taken, and the connection closes after the answers
to what was taken, as RFC 9112, section 9.3.2, lets a server do. What is refused is refused in OpenAI's shape, and never
in the midst of another answer.
"""

import asyncio
import uuid
from collections import deque
from math import inf
from typing import Any, Final
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from router.api.cycle import STATUS_LINES, Cycle
from router.api.leaving import LEAVING
from router.api.running import Running
from router.errors import ApiError

MAX_HEAD: Final = 64 * 1024
"""Bytes of request line and headers; RFC 9110, section 5.4, leaves the limit to the server."""

MAX_HEADERS: Final = 200
"""Headers of a request, and trailers."""

MAX_WAITING: Final = 256 * 1024
"""Bytes that a connection may send ahead while another of its requests is being answered."""

_MAX_HELD: Final = 64 * 1024  # bytes of a body beyond which no more is read until somebody takes them
_PER_BYTE: Final = 8  # bytes that a chunked body may need for each of its own: one a chunk takes six
_HOP: Final = (b"connection", b"upgrade", b"http2-settings")
_PERSISTENCE: Final = (b"close", b"keep-alive")
_INVALID: Final = ApiError(400, "The request is not valid HTTP.", code="invalid_http")
_TOO_LARGE: Final = ApiError(431, "The headers are too large, or too many.", code="headers_too_large")
_LATE: Final = ApiError(408, "The request did not arrive in time.", code="request_timeout")


class Bounds(msgspec.Struct, frozen=True):
    """In seconds: for a request to arrive whole, and for a client to take what was sent to it; see settings.Router."""

    receive: float = 30.0
    send: float = 60.0


class _RefusedError(Exception):
    """Raised through the parser."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class BoundedHttpProtocol(asyncio.Protocol):
    """One connection.

    - A head beyond MAX_HEAD or MAX_HEADERS: 431. What is not HTTP, or has no one Host: 400. A request that is not whole
      in time: 408. In each case the connection closes.
    - Trailers are no headers: nobody looks at them.
    - A client that asks for another protocol (`Upgrade`) is answered in this one.
    - A client that leaves is noticed by the request that is being answered; the others are not begun.
    - A client that does not take its answer in time loses the connection.
    - What an application does before it first has to wait, it does without a task; see Running.
    """

    transport: asyncio.Transport
    _parser: Any

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: Bounds | None = None,
    ) -> None:
        """All but the last is what uvicorn gives to every protocol."""
        self._loop = _loop or asyncio.get_running_loop()
        self._config = config
        self._app: Any = config.loaded_app
        self._server = server_state
        self._app_state = app_state
        self._bounds = bounds or Bounds()
        self._period = min(self._bounds.receive, config.timeout_keep_alive)
        self._scope: dict[str, Any] = {}  # what all requests of this connection have in common
        self._target, self._place = b"", ("", b"", b"")  # of the last request; mostly, the next has the same
        self._defaults_of: Any = None
        self._defaults = (b"", False)
        self.sent: asyncio.Future[None] = self._loop.create_future()
        self.sent.set_result(None)
        # -- what is being answered
        self._queue: deque[tuple[Cycle, dict[str, Any]]] = deque()
        self._serving: Cycle | None = None
        self._deaf = False
        self._stops = False
        self._ahead = 0  # bytes that came while something was being answered
        # -- what is arriving
        self._cycle: Cycle | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._expects = False
        self._in_message = False
        self._in_head = False
        self._upgrades = False
        self._head = 0  # bytes of a head that is not complete
        self._rest = 0  # bytes that came after the head
        self._body = 0  # those of them that are the body
        # -- flow and time
        self.is_full = False
        self._room = asyncio.Event()
        self._paused = False
        self._due = inf  # when the client must have sent what it is to send
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # -- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._server.connections.add(self)  # type: ignore[arg-type]  # it behaves as uvicorn's own
        self.transport = transport
        self._listen()
        self._scope = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": self._config.root_path,
            "method": "", "path": "", "raw_path": b"", "query_string": b"",
            "headers": [], "state": {}, "extensions": {},
        }  # fmt: skip
        self._due = self._loop.time() + self._bounds.receive
        self._look()

    def _listen(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # Else what a client sends after a request that is to be its last would be an error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)  # type: ignore[arg-type]
        self._queue.clear()
        if self._serving is not None and not self._serving.complete:
            self._serving.leave()
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        self._parser = None

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        was_in_head, was_busy = self._in_head, self._is_busy() and not self._is_arriving()
        self._feed(data)
        if not self._deaf and not self.transport.is_closing():
            if was_busy and self._is_busy():
                self._count_ahead(len(data))
            if self._in_message:
                self._count_message(len(data), was_in_head=was_in_head)
        if self._queue:
            self._begin()
        if self._due == inf:
            self._set_due()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._parser.get_method() == b"CONNECT":
                self._refuse(_INVALID)
            else:
                self._stay(rest)
        except httptools.HttpParserError as error:
            cause = error.__context__  # httptools wraps what its callbacks raise
            self._refuse(cause.error if isinstance(cause, _RefusedError) else _INVALID)

    def _stay(self, rest: bytes) -> None:
        """Takes a request for one without an upgrade, since its parser would take the body for the other protocol."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode("ascii")
        said = b",".join(value for name, value in self._headers if name == b"connection").lower()
        kept = [(name, value) for name, value in self._headers if name not in _HOP]
        kept += [(b"connection", token.strip()) for token in said.split(b",") if token.strip() in _PERSISTENCE]
        head = [b"%b %b HTTP/%b\r\n" % (method, self._url, version), *[b"%b: %b\r\n" % header for header in kept]]
        self._upgrades = False
        self._listen()
        self._feed(b"".join([*head, b"\r\n", rest]))

    def _count_message(self, size: int, *, was_in_head: bool) -> None:
        if self._in_head:
            self._head += size
        elif not was_in_head:
            self._rest += size
        if self._head > MAX_HEAD or len(self._headers) > MAX_HEADERS:
            self._refuse(_TOO_LARGE)
        elif self._rest - self._body > MAX_HEAD + _PER_BYTE * self._body:
            self._refuse(_INVALID)

    # -- what the parser finds --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._head = self._rest = self._body = self._hosts = 0
        self._expects = False
        self._url = b""
        self._headers = []
        self._due = inf

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head = 0
        parser, headers = self._parser, self._headers
        if parser.should_upgrade():
            self._upgrades = True
            return
        if len(headers) > MAX_HEADERS or sum(len(n) + len(v) + 4 for n, v in headers) + len(self._url) > MAX_HEAD:
            raise _RefusedError(_TOO_LARGE)
        version = parser.get_http_version()
        is_new = version == "1.1"
        if self._hosts != 1 and (self._hosts or is_new):
            raise _RefusedError(_INVALID)
        method = parser.get_method()
        keep_alive = is_new and not self._stops and parser.should_keep_alive()
        self._cycle = Cycle(self, method == b"HEAD", is_new, keep_alive, self._expects)
        scope = self._scope.copy()
        if not is_new:
            scope["http_version"] = version
        scope["method"] = method.decode("ascii")
        if self._url != self._target:
            self._target, self._place = self._url, self._find(self._url)
        scope["path"], scope["raw_path"], scope["query_string"] = self._place
        scope["headers"] = headers
        scope["state"] = self._app_state.copy()
        scope["extensions"] = {LEAVING: self._cycle}
        self._headers = []  # what comes now are trailers
        self._queue.append((self._cycle, scope))

    def _find(self, target: bytes) -> tuple[str, bytes, bytes]:
        url = httptools.parse_url(target)
        path = url.path.decode("ascii")
        return unquote(path) if "%" in path else path, url.path, url.query or b""

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        cycle = self._cycle
        if cycle is not None and not cycle.complete:
            cycle.take(body)
            if cycle.held > _MAX_HELD and cycle is self._serving and not self._paused:
                self._paused = True
                self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        self._in_message = False
        self._due = inf
        if self._cycle is not None:
            self._cycle.end()
            self._cycle = None

    # -- what is answered -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begins with the next request, if its turn has come."""
        if not self._queue or self._is_answering() or self.transport.is_closing():
            return
        self._serving, scope = cycle, _ = self._queue.popleft()
        if not self._queue:
            self._ahead = 0
        task = Running(self._app(scope, cycle.receive, cycle.send), cycle.ended).begin(self._loop)
        if task is not None:
            cycle.task = task
            self._server.tasks.add(task)

    def answered(self, cycle: Cycle) -> None:
        if not cycle.keep_alive:
            self.transport.close()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self.pause_writing()
            return
        self.resume_reading()
        if self._queue:
            self._loop.call_soon(self._begin)
        elif self._due == inf:
            self._set_due()

    def ended(self, cycle: Cycle) -> None:
        if cycle.task is not None:
            self._server.tasks.discard(cycle.task)
            cycle.task = None

    def defaults(self) -> tuple[bytes, bool]:
        headers = self._server.default_headers  # uvicorn makes them anew once a second, for the date
        if headers is not self._defaults_of:
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self._defaults_of, self._defaults = headers, (lines, (b"connection", b"close") in headers)
        return self._defaults

    def shutdown(self) -> None:
        """The server stops: what has been begun is answered, and the connection closes then."""
        self._stops = True
        if self._is_busy():
            self._take_no_more()
        elif not self._in_head:
            self.transport.close()

    def _is_answering(self) -> bool:
        return self._serving is not None and not self._serving.complete

    def _is_busy(self) -> bool:
        """Whether a request is being answered, or is to be."""
        return bool(self._queue) or self._is_answering()

    def _is_arriving(self) -> bool:
        """Whether more has to come of the request whose turn it is."""
        return self._serving is not None and self._serving.more_body

    # -- what is refused --------------------------------------------------------------------------------------------

    def _refuse(self, error: ApiError) -> None:
        serving = self._serving
        if self._queue and self._queue[-1][0].more_body:
            self._queue.pop()  # it is the one that is refused
        elif serving is not None and serving.more_body:
            if serving.begun:
                self.transport.close()
                return
            serving.leave()
            self.answer(error)
            return
        if self._is_busy():
            self._take_no_more()  # what is wrong came after the request that is being answered
        else:
            self.answer(error)

    def answer(self, error: ApiError) -> None:
        body = error.body()
        defaults, _ = self.defaults()
        head = [
            STATUS_LINES[error.status],
            defaults.replace(b"connection: close\r\n", b""),
            b"x-request-id: %b\r\ncontent-type: application/json\r\n" % uuid.uuid4().hex.encode("ascii"),
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
        ]
        self._fall_deaf()
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def _count_ahead(self, size: int) -> None:
        self._ahead += size
        if self._ahead > MAX_WAITING and self._queue:
            self._take_no_more()

    def _take_no_more(self) -> None:
        """Answers what has come whole, and closes the connection then."""
        if not self._is_arriving():
            self._fall_deaf()
        if self._queue and self._queue[-1][0].more_body:
            self._queue.pop()
        if self._is_busy():
            last = self._queue[-1][0] if self._queue else self._serving
            assert last is not None
            last.keep_alive = False
        else:
            self.transport.close()

    def _fall_deaf(self) -> None:
        self._deaf = True
        self._due = inf

    # -- flow -------------------------------------------------------------------------------------------------------

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_full = True
        self._room.clear()
        if self._stalled is None:
            self._stalled = self._loop.call_later(self._bounds.send, self.transport.abort)

    def resume_writing(self) -> None:
        self.is_full = False
        self._room.set()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    async def drain(self) -> None:
        await self._room.wait()

    # -- seconds ----------------------------------------------------------------------------------------------------

    def _set_due(self) -> None:
        """Notes by when the client must have gone on, if it is for him to go on."""
        if self._deaf:
            return
        if self._in_message:
            self._due = self._loop.time() + self._bounds.receive
        elif not self._is_busy():
            self._due = self._loop.time() + self._config.timeout_keep_alive

    def _look(self) -> None:
        """Looks at the clock: no later than at the time that is due, and never later than the next one could be."""
        now = self._loop.time()
        if now >= self._due:
            if self._in_message:
                self._refuse(_LATE)
            elif self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.close()
        if not self.transport.is_closing():
            self._timer = self._loop.call_later(min(max(0.0, self._due - now), self._period), self._look)
