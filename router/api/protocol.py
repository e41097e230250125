"""uvicorn's HTTP protocol, with a bound on all that a client may send, and on how long it may take.

Theory of operation. uvicorn's protocol takes what a client sends for as long as it comes, answers its requests one
after another, and marks only the newest as left when the client leaves. Here, a request has a bounded head, bounded
seconds to arrive, and a bound on what is neither head nor body (chunks' extensions, trailers). Reading never stops
because of a request that waits for its turn, since a client that leaves is noticed only by reading; where more waits
than may, nothing more is taken, and the connection closes after the answers to what was taken, as RFC 9112, section
9.3.2, lets a server do. What is refused is refused in OpenAI's shape, and never in the midst of another answer.
"""

import asyncio
import sys
import uuid
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from router.api.corked import CorkedTransport
from router.errors import ApiError

MAX_HEAD: Final = 64 * 1024
"""Bytes of request line and headers; RFC 9110, section 5.4, leaves the limit to the server."""

MAX_HEADERS: Final = 200
"""Headers of a request, and trailers."""

MAX_WAITING: Final = 256 * 1024
"""Bytes that a connection may send ahead while another of its requests is being answered."""

_PER_BYTE: Final = 8  # bytes that a chunked body may need for each of its own: one a chunk takes six
_HOP: Final = (b"connection", b"upgrade", b"http2-settings")
_INVALID: Final = ApiError(400, "The request is not valid HTTP.", code="invalid_http")
_TOO_LARGE: Final = ApiError(431, "The headers are too large, or too many.", code="headers_too_large")
_LATE: Final = ApiError(408, "The request did not arrive in time.", code="request_timeout")


class Bounds(msgspec.Struct, frozen=True):
    """In seconds: for a request to arrive whole, and for a client to take what was sent to it; see settings.Router."""

    receive: float = 30.0
    send: float = 60.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection.

    - A head beyond MAX_HEAD or MAX_HEADERS: 431. What is not HTTP, or has no one Host: 400. A request that is not whole
      in time: 408. In each case the connection closes.
    - Trailers are no headers: nobody looks at them.
    - A client that asks for another protocol (`Upgrade`) is answered in this one.
    - A client that leaves is noticed by all of its requests.
    - A client that does not take its answer in time loses the connection.
    """

    def __init__(self, *args: Any, bounds: Bounds | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bounds = bounds or Bounds()
        self._serving: RequestResponseCycle | None = None
        self._in_head = False
        self._in_message = False
        self._upgrades = False
        self._deaf = False
        self._stops = False
        self._head = 0  # bytes of a head that is not complete
        self._rest = 0  # bytes that came after the head
        self._body = 0  # those of them that are the body
        self._ahead = 0  # bytes that came while something was being answered
        self._due: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # -- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CorkedTransport(transport, self.loop))  # type: ignore[arg-type]  # it behaves as one
        self._set_due()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_due()
        self.resume_writing()
        if self._is_busy():
            _tell_left(self._serving)
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        was_in_head, busy = self._in_head, self._is_busy() and not self._is_arriving()
        self._feed(data)
        if self._deaf or self.transport.is_closing():
            return
        if busy and self._is_busy():
            self._count_ahead(len(data))
        if self._in_message:
            if self._in_head:
                self._head += len(data)
            elif not was_in_head:
                self._rest += len(data)
            if self._head > MAX_HEAD or len(self.headers) > MAX_HEADERS:
                self._refuse(_TOO_LARGE)
            elif self._rest - self._body > MAX_HEAD + _PER_BYTE * self._body:
                self._refuse(_INVALID)
        if self._in_message or not self._is_busy():
            self._set_due()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self.parser.get_method() == b"CONNECT":
                self._refuse(_INVALID)
            else:
                self._stay(rest)
        except httptools.HttpParserError as error:
            cause = error.__context__  # httptools wraps what its callbacks raise
            self._refuse(cause.error if isinstance(cause, _RefusedError) else _INVALID)

    def _stay(self, rest: bytes) -> None:
        """Takes a request for one without an upgrade, since its parser would take the body for the other protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode("ascii")
        said = b",".join(value for name, value in self.headers if name == b"connection").lower()
        kept = [(name, value) for name, value in self.headers if name not in _HOP]
        kept += [(b"connection", token.strip()) for token in said.split(b",") if token.strip() in _PERSISTENCE]
        head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version), *[b"%b: %b\r\n" % header for header in kept]]
        self._upgrades = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join([*head, b"\r\n", rest]))

    # -- what the parser finds --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._head = self._rest = self._body = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head = 0
        if self.parser.should_upgrade():
            self._upgrades = True
            return
        size = hosts = 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            hosts += name == b"host"
        if size + len(self.url) > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            raise _RefusedError(_TOO_LARGE)
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            raise _RefusedError(_INVALID)
        super().on_headers_complete()
        self.headers = []  # what comes now are trailers
        if self._stops:
            self.cycle.keep_alive = False
        if self.cycle is not self._serving:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)
        if self.cycle is not self._serving:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        self._in_message = False
        self._unset_due()
        super().on_message_complete()

    # -- what is answered -------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        if not self.pipeline:
            self._ahead = 0
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] != "1.0" else _without_chunks(cycle, app))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.pause_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._bounds.send, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """The server stops: what has been begun is answered, and the connection closes then."""
        self._stops = True
        if self._is_busy():
            self._take_no_more()
        elif not self._in_message:
            self.transport.close()

    def _is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._serving is not None and not self._serving.response_complete

    def _is_arriving(self) -> bool:
        """Whether more has to come of the request that is being answered."""
        return self._serving is not None and self._serving.more_body

    # -- what is refused --------------------------------------------------------------------------------------------

    def _refuse(self, error: ApiError) -> None:
        if not self._is_busy() and self._is_arriving():
            self.transport.close()  # it was answered before it was whole
        elif not self._is_busy():
            self._answer(error)
        elif not self._is_arriving():
            self._take_no_more()  # what is wrong came after the request that is being answered
        elif self._serving is not None and not self._serving.response_started:
            _tell_left(self._serving)
            self._answer(error)
        else:
            self.transport.close()

    def _answer(self, error: ApiError) -> None:
        body = error.body()
        phrase = HTTPStatus(error.status).phrase.encode("ascii")
        head = [
            b"HTTP/1.1 %d %b\r\n" % (error.status, phrase),
            *[b"%b: %b\r\n" % header for header in self.server_state.default_headers if header[0] != b"connection"],
            b"x-request-id: %b\r\ncontent-type: application/json\r\n" % uuid.uuid4().hex.encode("ascii"),
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body),
        ]
        self._deaf = True
        self._unset_due()
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def _count_ahead(self, size: int) -> None:
        self._ahead += size
        if self._ahead > MAX_WAITING and self.cycle is not self._serving:
            self._take_no_more()

    def _take_no_more(self) -> None:
        """Answers what has come whole, and closes the connection then."""
        self._deaf = not self._is_arriving()
        if self._deaf:
            self._unset_due()
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self._serving
        assert last is not None
        last.keep_alive = False

    # -- seconds ----------------------------------------------------------------------------------------------------

    def _set_due(self) -> None:
        if self._due is None and not self._deaf and not self.transport.is_closing():
            self._due = self.loop.call_later(self._bounds.receive, self._be_late)

    def _unset_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _be_late(self) -> None:
        self._due = None
        if self._in_message:
            self._refuse(_LATE)
        else:  # it has not even begun
            self.transport.close()


_PERSISTENCE: Final = (b"close", b"keep-alive")


class _RefusedError(Exception):
    """Raised through the parser."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def _tell_left(cycle: RequestResponseCycle | None) -> None:
    if cycle is not None:
        cycle.disconnected = True
        cycle.message_event.set()


def _without_chunks(cycle: RequestResponseCycle, app: Any) -> Any:
    """An application whose answers end where the connection does: HTTP/1.0 has no chunks (RFC 9112, section 6.1)."""

    async def old(scope: Any, receive: Any, send: Any) -> None:
        endless = False

        async def sending(message: Any) -> None:
            nonlocal endless
            if message["type"] == "http.response.start":
                endless = all(name != b"content-length" for name, _ in message.get("headers", ()))
                if endless:
                    cycle.chunked_encoding, cycle.expected_content_length = False, sys.maxsize
            elif endless and not message.get("more_body", False):
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sending)

    return old
