"""Requests as they arrive: from bytes to cycles, with a bound on all that a client may send.

Theory of operation. httptools parses. A request has a bounded head, and a bound on what is neither head nor body
(chunks' extensions, trailers); how large a body may be is the application's to say. A request is handed on with its
head, and its body follows.
"""

from collections import deque
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools

from router.net.server.client_connection import CLIENT
from router.net.server.cycle import Connection, Cycle
from router.net.server.errors import ProtocolError

MAX_HEAD: Final = 64 * 1024
"""Bytes of request line and headers; RFC 9110, section 5.4, leaves the limit to the server."""

MAX_HEADERS: Final = 200
"""Headers of a request, and trailers."""

MAX_REQUESTS: Final = 256
"""Requests that may wait for their turn on a connection; the smallest takes fifty times its bytes in memory."""

_PER_BYTE: Final = 8  # bytes that a chunked body may need for each of its own: one a chunk takes six
_HOP: Final = (b"connection", b"upgrade", b"http2-settings")
_PERSISTENCE: Final = (b"close", b"keep-alive")

Queue = deque[tuple[Cycle, dict[str, Any]]]
"""Requests that are to be answered, each with its ASGI scope."""


class Parser(Protocol):
    """What of httptools.HttpRequestParser is used here."""

    def feed_data(self, data: bytes | memoryview) -> None: ...
    def get_method(self) -> bytes: ...
    def get_http_version(self) -> str: ...
    def should_keep_alive(self) -> bool: ...
    def should_upgrade(self) -> bool: ...


class _Said:
    """What a request's first line says; `is_new`: that it is HTTP/1.1, `scope`: what is known of the request so far."""

    __slots__ = ("is_head", "is_new", "scope")

    def __init__(self, *, is_new: bool, is_head: bool, scope: dict[str, Any]) -> None:
        self.is_new = is_new
        self.is_head = is_head
        self.scope = scope


class Arriving:
    """What comes over one connection.

    - A head beyond MAX_HEAD or MAX_HEADERS is refused with 431; what is not HTTP, or has no one Host, with 400.
    - Trailers are no headers: nobody looks at them.
    - A request for another protocol (`Upgrade`) is one in this protocol; one for a tunnel is refused.
    """

    def __init__(self, connection: Connection, scope: dict[str, Any], queue: Queue) -> None:
        """`scope` is what the requests have in common; requests go into the `queue`."""
        self.cycle: Cycle | None = None  # whose body is arriving
        self.in_message = False
        self.in_head = False
        self.steps = 0  # how often a request has begun to arrive, or has arrived
        self.stops = False  # what comes now is the last
        self._connection = connection
        self._scope = scope
        self._queue = queue
        self._parser: Parser
        self._upgrades = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._expects = False
        self._line = b""  # the last request's first line; mostly, the next has the same
        self._said = _Said(is_new=False, is_head=False, scope={})
        self._ahead = b""  # what is being parsed, up to the first head in it, if it begins with a request
        self._fed = 0  # bytes that are being parsed
        self._head = 0  # bytes of a head that is not complete
        self._rest = 0  # bytes that came after the head
        self._body = 0  # those of them that are the body
        self._listen()

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError for what is refused; nothing must be fed after that."""
        was_in_head, was_in_message, steps = self.in_head, self.in_message, self.steps
        self._fed = len(data)
        self._ahead = b"" if was_in_message else data
        self._parse(data)
        if not self.in_message:
            return
        if self.steps - steps > 1 - was_in_message:
            # It began behind the end of another message, nobody knows where. Only what has been parsed of its head is
            # counted of this read, so that its bounds are exceeded by one read at most.
            self._head = self._size() if self.in_head else 0
        elif self.in_head:
            self._head += len(data)
        elif not was_in_head:
            self._rest += len(data)
        if self._head > MAX_HEAD or len(self._headers) > MAX_HEADERS:
            raise _too_large()
        if self._rest - self._body > MAX_HEAD + _PER_BYTE * self._body:
            raise _invalid()

    def _listen(self) -> None:
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
            raise (cause if isinstance(cause, ProtocolError) else _invalid()) from None

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
                raise _invalid()
            rest = rest[end:]
            head = self._without_upgrade()
            self._listen()
            self._parser.feed_data(head)
            end = self._parse_to_upgrade(rest)

    def _without_upgrade(self) -> bytes:
        """The head of a request without what asks for another protocol.

        Its own parser would take the body for that protocol's.
        """
        method, version = self._parser.get_method(), self._parser.get_http_version().encode("ascii")
        said = b",".join(value for name, value in self._headers if name == b"connection").lower()
        kept = [(name, value) for name, value in self._headers if name not in _HOP]
        kept += [(b"connection", token.strip()) for token in said.split(b",") if token.strip() in _PERSISTENCE]
        head = [b"%b %b HTTP/%b\r\n" % (method, self._url, version), *[b"%b: %b\r\n" % header for header in kept]]
        self._upgrades = False
        self.steps -= 1  # it begins once more
        return b"".join([*head, b"\r\n"])

    # -- what the parser finds --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_message = self.in_head = True
        self.steps += 1
        self._head = self._rest = self._body = self._hosts = 0
        self._expects = False
        self._url = b""
        self._headers = []

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
        self.in_head = False
        parser, headers = self._parser, self._headers
        is_known = self._line and self._ahead.startswith(self._line)
        self._ahead = b""
        if parser.should_upgrade():
            self._upgrades = True
            return
        if len(headers) > MAX_HEADERS or (self._head + self._fed > MAX_HEAD and self._size() > MAX_HEAD):
            raise _too_large()
        self._head = 0
        if len(self._queue) >= MAX_REQUESTS:
            raise _too_many()
        if not is_known:
            self._read_line()
        said = self._said
        if self._hosts != 1 and (self._hosts or said.is_new):
            raise _invalid()
        keep_alive = said.is_new and not self.stops and parser.should_keep_alive()
        self.cycle = cycle = Cycle(self._connection, said.is_head, said.is_new, keep_alive, self._expects)
        scope = said.scope.copy()
        scope["headers"] = headers
        scope["extensions"] = {CLIENT: cycle}
        self._headers = []  # what comes now are trailers
        self._queue.append((cycle, scope))

    def _read_line(self) -> None:
        method, version = self._parser.get_method(), self._parser.get_http_version()
        self._line = b"%b %b HTTP/%b\r\n" % (method, self._url, version.encode("ascii"))
        url: Any = httptools.parse_url(self._url)  # its types say that there is always a query
        path = url.path.decode("ascii")
        self._said = _Said(
            is_new=version == "1.1",
            is_head=method == b"HEAD",
            scope=self._scope
            | {
                "http_version": version, "method": method.decode("ascii"), "raw_path": url.path,
                "path": unquote(path) if "%" in path else path, "query_string": url.query or b"",
            },
        )  # fmt: skip

    def _size(self) -> int:
        return sum(len(name) + len(value) + 4 for name, value in self._headers) + len(self._url)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self.cycle is not None:
            self.cycle.arrives(body)

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        self.in_message = False
        self.steps += 1
        if self.cycle is not None:
            self.cycle.arrived()
            self.cycle = None

    def close(self) -> None:
        """Nothing comes any more."""
        self._parser, self._connection = (
            cast("Parser", None),
            cast("Connection", None),
        )  # which hold this


def _invalid() -> ProtocolError:
    return ProtocolError(400, "invalid_http")


def _too_many() -> ProtocolError:
    return ProtocolError(429, "too_many_requests")


def _too_large() -> ProtocolError:
    return ProtocolError(431, "headers_too_large")
