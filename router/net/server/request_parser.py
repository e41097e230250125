"""Requests as they arrive: from bytes to cycles, with a bound on all that a client may send.

Theory of operation. httptools parses. A request has a bounded head, and a bound on what is neither head nor body
(chunks' extensions, trailers); how large a body may be is the application's to say. A request is handed on with its
head, and its body follows.
"""

from collections import deque
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools

from router.net.server.client_connection import CLIENT_EXTENSION
from router.net.server.cycle import Cycle, CycleConnection
from router.net.server.errors import ProtocolError

MAX_HEAD_BYTES: Final = 64 * 1024
"""Bytes of request line and headers; RFC 9110, section 5.4, leaves the limit to the server."""

MAX_HEADERS: Final = 200
"""Headers of a request, and trailers."""

MAX_PIPELINED_REQUESTS: Final = 256
"""Requests that may wait for their turn on a connection; the smallest takes fifty times its bytes in memory."""

_CHUNK_OVERHEAD_PER_BYTE: Final = 8  # bytes that a chunked body may need for each of its own: one a chunk takes six
_UPGRADE_HEADERS: Final = (b"connection", b"upgrade", b"http2-settings")
_PERSISTENCE_OPTIONS: Final = (b"close", b"keep-alive")

RequestQueue = deque[tuple[Cycle, dict[str, Any]]]
"""Requests that are to be answered, each with its ASGI scope."""


class HttptoolsParser(Protocol):
    """What of httptools.HttpRequestParser is used here."""

    def feed_data(self, data: bytes | memoryview) -> None: ...
    def get_method(self) -> bytes: ...
    def get_http_version(self) -> str: ...
    def should_keep_alive(self) -> bool: ...
    def should_upgrade(self) -> bool: ...


class _RequestLine:
    """What a request's first line says; `is_new`: that it is HTTP/1.1, `scope`: what is known of the request so far."""

    __slots__ = ("is_head_request", "is_http11", "scope")

    def __init__(self, *, is_http11: bool, is_head_request: bool, scope: dict[str, Any]) -> None:
        self.is_http11 = is_http11
        self.is_head_request = is_head_request
        self.scope = scope


class RequestParser:
    """What comes over one connection.

    - A head beyond MAX_HEAD or MAX_HEADERS is refused with 431; what is not HTTP, or has no one Host, with 400.
    - Trailers are no headers: nobody looks at them.
    - A request for another protocol (`Upgrade`) is one in this protocol; one for a tunnel is refused.
    """

    def __init__(self, connection: CycleConnection, base_scope: dict[str, Any], queue: RequestQueue) -> None:
        """`scope` is what the requests have in common; requests go into the `queue`."""
        self.receiving_cycle: Cycle | None = None  # whose body is arriving
        self.in_message = False
        self.in_head = False
        self.message_boundaries = 0  # how often a request has begun to arrive, or has arrived
        self.closing = False  # what comes now is the last
        self._connection = connection
        self._base_scope = base_scope
        self._queue = queue
        self._parser: HttptoolsParser
        self._is_upgrade = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._host_count = 0
        self._expects_continue = False
        self._raw_request_line = b""  # the last request's first line; mostly, the next has the same
        self._request_line = _RequestLine(is_http11=False, is_head_request=False, scope={})
        self._unparsed_head = b""  # what is being parsed, up to the first head in it, if it begins with a request
        self._fed_bytes = 0  # bytes that are being parsed
        self._head_bytes = 0  # bytes of a head that is not complete
        self._bytes_after_head = 0  # bytes that came after the head
        self._body_bytes = 0  # those of them that are the body
        self._reset_parser()

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError for what is refused; nothing must be fed after that."""
        was_in_head, was_in_message, steps = self.in_head, self.in_message, self.message_boundaries
        self._fed_bytes = len(data)
        self._unparsed_head = b"" if was_in_message else data
        self._parse(data)
        if not self.in_message:
            return
        if self.message_boundaries - steps > 1 - was_in_message:
            # It began behind the end of another message, nobody knows where. Only what has been parsed of its head is
            # counted of this read, so that its bounds are exceeded by one read at most.
            self._head_bytes = self._head_size() if self.in_head else 0
        elif self.in_head:
            self._head_bytes += len(data)
        elif not was_in_head:
            self._bytes_after_head += len(data)
        if self._head_bytes > MAX_HEAD_BYTES or len(self._headers) > MAX_HEADERS:
            raise _headers_too_large()
        if self._bytes_after_head - self._body_bytes > MAX_HEAD_BYTES + _CHUNK_OVERHEAD_PER_BYTE * self._body_bytes:
            raise _invalid_http()

    def _reset_parser(self) -> None:
        parser = httptools.HttpRequestParser(self)
        # Else what a client sends after a request that is to be its last would be an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parser = parser

    def _parse(self, data: bytes) -> None:
        try:
            end = self._parse_to_upgrade(data)
            if end is not None:
                self._parse_upgrades(memoryview(data)[end:])
        except httptools.HttpParserError as error:
            cause = error.__context__  # httptools wraps what its callbacks raise
            raise (cause if isinstance(cause, ProtocolError) else _invalid_http()) from None

    def _parse_to_upgrade(self, data: bytes | memoryview) -> int | None:
        """Where the head of the first request for another protocol ends; None if there is none."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
            return end
        return None

    def _parse_upgrades(self, rest: memoryview) -> None:
        """Parses what follows the head of a request for another protocol, and the others that come with it.

        A client may send thousands of them in one read: each costs a new parser, and no copy of what follows it.
        """
        end: int | None = 0
        while end is not None:
            if self._parser.get_method() == b"CONNECT":
                raise _invalid_http()
            rest = rest[end:]
            head = self._head_without_upgrade()
            self._reset_parser()
            self._parser.feed_data(head)
            end = self._parse_to_upgrade(rest)

    def _head_without_upgrade(self) -> bytes:
        """The head of a request without what asks for another protocol.

        Its own parser would take the body for that protocol's.
        """
        method, version = self._parser.get_method(), self._parser.get_http_version().encode("ascii")
        said = b",".join(value for name, value in self._headers if name == b"connection").lower()
        kept = [(name, value) for name, value in self._headers if name not in _UPGRADE_HEADERS]
        kept += [(b"connection", token.strip()) for token in said.split(b",") if token.strip() in _PERSISTENCE_OPTIONS]
        head = [b"%b %b HTTP/%b\r\n" % (method, self._url, version), *[b"%b: %b\r\n" % header for header in kept]]
        self._is_upgrade = False
        self.message_boundaries -= 1  # it begins once more
        return b"".join([*head, b"\r\n"])

    # -- what the parser finds --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_message = self.in_head = True
        self.message_boundaries += 1
        self._head_bytes = self._bytes_after_head = self._body_bytes = self._host_count = 0
        self._expects_continue = False
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"host":
            self._host_count += 1
        elif name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.in_head = False
        parser, headers = self._parser, self._headers
        is_known = self._raw_request_line and self._unparsed_head.startswith(self._raw_request_line)
        self._unparsed_head = b""
        if parser.should_upgrade():
            self._is_upgrade = True
            return
        if len(headers) > MAX_HEADERS or (
            self._head_bytes + self._fed_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES
        ):
            raise _headers_too_large()
        self._head_bytes = 0
        if len(self._queue) >= MAX_PIPELINED_REQUESTS:
            raise _too_many_requests()
        if not is_known:
            self._parse_request_line()
        said = self._request_line
        if self._host_count != 1 and (self._host_count or said.is_http11):
            raise _invalid_http()
        keep_alive = said.is_http11 and not self.closing and parser.should_keep_alive()
        self.receiving_cycle = cycle = Cycle(
            self._connection, said.is_head_request, said.is_http11, keep_alive, self._expects_continue
        )
        scope = said.scope.copy()
        scope["headers"] = headers
        scope["extensions"] = {CLIENT_EXTENSION: cycle}
        self._headers = []  # what comes now are trailers
        self._queue.append((cycle, scope))

    def _parse_request_line(self) -> None:
        method, version = self._parser.get_method(), self._parser.get_http_version()
        self._raw_request_line = b"%b %b HTTP/%b\r\n" % (method, self._url, version.encode("ascii"))
        url: Any = httptools.parse_url(self._url)  # its types say that there is always a query
        path = url.path.decode("ascii")
        self._request_line = _RequestLine(
            is_http11=version == "1.1",
            is_head_request=method == b"HEAD",
            scope=self._base_scope
            | {
                "http_version": version, "method": method.decode("ascii"), "raw_path": url.path,
                "path": unquote(path) if "%" in path else path, "query_string": url.query or b"",
            },
        )  # fmt: skip

    def _head_size(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._headers) + len(self._url)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.receiving_cycle is not None:
            self.receiving_cycle.on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self.in_message = False
        self.message_boundaries += 1
        if self.receiving_cycle is not None:
            self.receiving_cycle.on_body_complete()
            self.receiving_cycle = None

    def close(self) -> None:
        """Nothing comes any more."""
        self._parser, self._connection = (
            cast("HttptoolsParser", None),
            cast("CycleConnection", None),
        )  # which hold this


def _invalid_http() -> ProtocolError:
    return ProtocolError(400, "invalid_http")


def _too_many_requests() -> ProtocolError:
    return ProtocolError(429, "too_many_requests")


def _headers_too_large() -> ProtocolError:
    return ProtocolError(431, "headers_too_large")
