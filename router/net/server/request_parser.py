"""Parses a connection's bytes into requests, with a limit on everything that a client may send.

Theory of operation. httptools parses and calls the `on_…` methods. A request's head is limited, and so are the bytes
that are neither head nor body (chunk extensions, trailers); the application limits the body. A request is put into the
queue when its head is complete; its body follows.

httptools also takes request lines that are not HTTP's: with several blanks, or of RTSP. It does not show them. So a
line that differs from that of the previous request is written anew from its parts, and the request must begin with it.
Nor does it show where a request begins. The first one of a read begins with the read, any further one where the message
before it ends: that is only computed if there is one.
"""

from collections import deque
from functools import partial
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools

from router.net.server.chunk_scan import ChunkScan
from router.net.server.client_connection import CLIENT_EXTENSION, UPGRADE_EXTENSION
from router.net.server.cycle import Cycle, CycleConnection
from router.net.server.errors import ProtocolError

MAX_HEAD_BYTES: Final = 64 * 1024
"""Bytes of the request line and headers. RFC 9110, section 5.4, leaves this limit to the server."""

MAX_HEADERS: Final = 200
"""Header fields of a request, and fields of its trailers."""

MAX_PIPELINED_REQUESTS: Final = 256
"""Requests that may be queued on one connection. The smallest takes fifty times its bytes in memory."""

# Bytes that a chunked body may take on the wire for each byte of content: a chunk of one byte takes six ("1\r\nx\r\n").
_CHUNK_OVERHEAD_PER_BYTE: Final = 8
_HEAD_END: Final = b"\r\n\r\n"  # httptools takes no LF alone
_UPGRADE_HEADERS: Final = (b"connection", b"upgrade", b"http2-settings")
_PERSISTENCE_OPTIONS: Final = (b"close", b"keep-alive")
_VERSIONS: Final = ("1.1", "1.0")  # httptools also reads 0.9, without a version, and 2.0

RequestQueue = deque[tuple[Cycle, dict[str, Any]]]
"""Requests that are to be answered, in order of arrival, each with its ASGI scope."""


class HttptoolsParser(Protocol):
    """The methods of httptools.HttpRequestParser that are used here."""

    def feed_data(self, data: bytes | memoryview) -> None: ...
    def get_method(self) -> bytes: ...
    def get_http_version(self) -> str: ...
    def should_keep_alive(self) -> bool: ...
    def should_upgrade(self) -> bool: ...


class _RequestLine:
    """A parsed request line; `scope`: the part of the ASGI scope that follows from it."""

    def __init__(self, *, is_http11: bool, is_head_request: bool, scope: dict[str, Any]) -> None:
        self.is_http11 = is_http11
        self.is_head_request = is_head_request
        self.scope = scope


class RequestParser:
    """The requests of one connection.

    - A head beyond MAX_HEAD_BYTES or MAX_HEADERS is refused with 431; invalid HTTP, or no single Host, with 400. So are
      other versions than 1.0 and 1.1, and a transfer coding, except `chunked` alone in HTTP/1.1: another server may
      see another body.
    - Trailers are not added to the headers; they are ignored.
    - A request to switch protocols (`Upgrade`) is served as HTTP/1.1; CONNECT is refused. One for a WebSocket has an
      UPGRADE_EXTENSION.
    """

    def __init__(self, connection: CycleConnection, base_scope: dict[str, Any], queue: RequestQueue) -> None:
        """`base_scope`: the part of the ASGI scope that all requests share; requests are appended to `queue`."""
        self.receiving_cycle: Cycle | None = None  # whose body is arriving
        self.in_message = False
        self.in_head = False
        self.message_boundaries = 0  # beginnings and ends of messages so far
        self.closing = False  # the next request is the last
        self._connection = connection
        self._base_scope = base_scope
        self._queue = queue
        self._parser: HttptoolsParser
        self._is_upgrade = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._host_count = 0
        self._expects_continue = self._is_chunked = False
        # The last request's line. It rarely changes on a connection, and comparing is cheaper than parsing.
        self._raw_request_line = b""
        self._request_line = _RequestLine(is_http11=False, is_head_request=False, scope={})
        self._fed_bytes = 0  # bytes of the current `feed`
        self._fed: bytes | bytearray = b""  # these bytes, with those before them of a head that is not complete
        self._begin = 0  # where the message begins in `_fed`, maybe with empty lines; -1 if in an earlier read
        self._has_ended = False  # whether a message has ended in this read, and no other one has begun after it
        self._earlier_body_bytes = 0  # bytes of content that came in earlier reads
        self._chunk_scan: ChunkScan | None = None  # of a chunked body that takes several reads
        self._head_bytes = 0  # bytes of the incomplete head in earlier reads
        self._bytes_after_head = 0  # bytes of the message that came in reads after that of its head
        self._body_bytes = 0  # bytes of content
        self._reset_parser()

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError for what is refused; after that, nothing more may be fed."""
        was_in_head, was_in_message, boundaries_before = self.in_head, self.in_message, self.message_boundaries
        self._fed_bytes = len(data)
        self._has_ended = False
        self._earlier_body_bytes = self._body_bytes
        if was_in_head:
            self._fed += data
        else:
            self._fed = data
            self._begin = -1 if was_in_message else 0
        self._parse(data)
        if not self.in_message:
            self._fed = b""
            return
        if self.in_head:
            if not was_in_head or self.message_boundaries != boundaries_before:
                # Further bytes are appended without a copy of the former ones.
                self._fed = bytearray(self._fed[self._begin :])
                self._begin = 0
            self._head_bytes = len(self._fed)
        else:
            if self._is_chunked:
                self._find_chunked_end()
                # httptools copies an incomplete trailer with every read, so a long line would take minutes.
                if self._chunk_scan is not None and self._chunk_scan.line_bytes > MAX_HEAD_BYTES:
                    raise _invalid_http()
            self._fed = b""
            # What follows another message in this read is not counted, so the limit can be exceeded by one read.
            if not was_in_head and self.message_boundaries - boundaries_before <= 1 - was_in_message:
                self._bytes_after_head += len(data)
        if self._head_bytes > MAX_HEAD_BYTES or len(self._headers) > MAX_HEADERS:
            raise _headers_too_large()
        # Framing is what is neither head nor content: a bound that grows with the content stops empty extensions.
        if self._bytes_after_head - self._body_bytes > MAX_HEAD_BYTES + _CHUNK_OVERHEAD_PER_BYTE * self._body_bytes:
            raise _invalid_http()

    @property
    def partial_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that have arrived of a request that is not in the queue yet."""
        return self._headers

    def _reset_parser(self) -> None:
        parser = httptools.HttpRequestParser(self)
        # Otherwise bytes after a request with `Connection: close` are a parse error.
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
        """The offset after the first head that asks for another protocol; None if there is none."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
            return end
        return None

    def _parse_upgrades(self, rest: memoryview) -> None:
        """Parses what follows a head that asks for another protocol, and further such requests in the same bytes.

        A client can send thousands of them in one read. Each costs a new parser, but a memoryview avoids that each
        also copies the rest of the read.
        """
        end: int | None = 0
        while end is not None:
            if self._parser.get_method() == b"CONNECT":
                raise _invalid_http()
            rest = rest[end:]
            # A parser that has stopped for an upgrade stays stopped; a new one parses the head again, without it.
            is_websocket = self._asks_for_websocket()
            head = self._head_without_upgrade()
            self._reset_parser()
            self._parser.feed_data(head)
            # A client waits for the 101 before it sends more, so a request with a body is none for a WebSocket.
            if is_websocket and not self.in_message and self._queue:
                cycle, scope = self._queue[-1]
                scope["extensions"][UPGRADE_EXTENSION] = partial(self._connection.switch_protocol, cycle)
            end = self._parse_to_upgrade(rest)

    def _asks_for_websocket(self) -> bool:
        protocols = [value.lower() for name, value in self._headers if name == b"upgrade"]
        return protocols == [b"websocket"] and self._parser.get_http_version() == "1.1"

    def _head_without_upgrade(self) -> bytes:
        """The request's head without the headers that ask for another protocol.

        With them, httptools would not parse the body: it would leave it to the other protocol.
        """
        method, version = self._parser.get_method(), self._parser.get_http_version().encode("ascii")
        options = b",".join(value for name, value in self._headers if name == b"connection").lower()
        kept = [(name, value) for name, value in self._headers if name not in _UPGRADE_HEADERS]
        kept += [
            (b"connection", token.strip()) for token in options.split(b",") if token.strip() in _PERSISTENCE_OPTIONS
        ]
        head = [b"%b %b HTTP/%b\r\n" % (method, self._url, version), *[b"%b: %b\r\n" % header for header in kept]]
        self._is_upgrade = False
        self.message_boundaries -= 1  # on_message_begin is called a second time for it
        return b"".join([*head, b"\r\n"])

    # -- callbacks of httptools -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._has_ended:
            self._begin = self._find_message_end()
            self._has_ended = False
        self.in_message = self.in_head = True
        self.message_boundaries += 1
        self._head_bytes = self._bytes_after_head = self._body_bytes = self._host_count = 0
        self._earlier_body_bytes = 0
        self._expects_continue = self._is_chunked = False
        self._chunk_scan = None
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
        elif name == b"transfer-encoding":
            if value.strip(b" \t").lower() != b"chunked":
                raise _invalid_http()
            self._is_chunked = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.in_head = False
        parser, headers = self._parser, self._headers
        if parser.should_upgrade():
            self._is_upgrade = True
            return
        # The sum is an upper bound that costs nothing; the exact size is counted only above it.
        if len(headers) > MAX_HEADERS or (
            self._head_bytes + self._fed_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES
        ):
            raise _headers_too_large()
        self._head_bytes = 0
        # Checked for each request, since one read can hold thousands of small ones.
        if len(self._queue) >= MAX_PIPELINED_REQUESTS:
            raise _too_many_requests()
        if not self._raw_request_line or not self._fed.startswith(self._raw_request_line, self._begin):
            self._parse_request_line()
        request_line = self._request_line
        # RFC 9112, section 3.2: exactly one Host; HTTP/1.0 may have none.
        if self._host_count != 1 and (self._host_count or request_line.is_http11):
            raise _invalid_http()
        if self._is_chunked and not request_line.is_http11:  # RFC 9112, section 6.1: the framing is faulty
            raise _invalid_http()
        keep_alive = request_line.is_http11 and not self.closing and parser.should_keep_alive()
        self.receiving_cycle = cycle = Cycle(
            self._connection, request_line.is_head_request, request_line.is_http11, keep_alive, self._expects_continue
        )
        scope = request_line.scope.copy()
        scope["headers"] = headers
        scope["extensions"] = {CLIENT_EXTENSION: cycle}
        self._headers = []  # the next headers are trailers
        self._queue.append((cycle, scope))

    def _parse_request_line(self) -> None:
        method, version = self._parser.get_method(), self._parser.get_http_version()
        # RFC 9112, section 3.2: a target has no fragment. httptools takes one.
        if version not in _VERSIONS or b"#" in self._url:
            raise _invalid_http()
        line = b"%b %b HTTP/%b\r\n" % (method, self._url, version.encode("ascii"))
        if not self._fed.startswith(line, self._line_begin()):
            raise _invalid_http()
        self._raw_request_line = line
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

    def _line_begin(self) -> int:
        """The offset of the request line in `_fed`."""
        at = self._begin
        while self._fed[at] in b"\r\n":
            at += 1
        return at

    def _body_begin(self) -> int:
        """The offset in `_fed` of the body, as far as it has not come in earlier reads."""
        return self._fed.index(_HEAD_END, self._line_begin()) + len(_HEAD_END) if self._begin >= 0 else 0

    def _find_message_end(self) -> int:
        """The offset in `_fed` after a message that ends there."""
        if self._is_chunked:
            return self._find_chunked_end()
        return self._body_begin() + self._body_bytes - self._earlier_body_bytes

    def _find_chunked_end(self) -> int:
        if self._chunk_scan is None:
            self._chunk_scan = ChunkScan()
        return self._chunk_scan.find_end(self._fed, self._body_begin())

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
        self._has_ended = True
        self.message_boundaries += 1
        if self.receiving_cycle is not None:
            self.receiving_cycle.on_body_complete()
            self.receiving_cycle = None

    def close(self) -> None:
        # Both refer to this object: without the cycles, reference counting frees all three.
        self._parser, self._connection = cast("HttptoolsParser", None), cast("CycleConnection", None)


def _invalid_http() -> ProtocolError:
    return ProtocolError(400, "invalid_http")


def _too_many_requests() -> ProtocolError:
    return ProtocolError(429, "too_many_requests")


def _headers_too_large() -> ProtocolError:
    return ProtocolError(431, "headers_too_large")
