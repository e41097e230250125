"""HTTP/1.1 as a client speaks it, without I/O: a request to bytes, and bytes to a response (RFC 9112).

The reader wraps `httptools.HttpResponseParser` (llhttp), which calls back into it. What runs for every chunk of a
stream is kept out of Python: `on_body` is the `append` of a list, and the borders of chunks have no callback at all.

What llhttp leaves to its user is settled here:

- interim (1xx) responses come as messages of their own; they are dropped
- a response to HEAD announces a body that never comes; it ends with its head, and its parser cannot be used again
- a body without a length ends with the connection, which only `end()` can tell
- what follows a complete response was not asked for; it is noted in `reusable`, and never read as a response
- nothing limits a head; `max_head` does, the same wherever the input is cut
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import httptools
import httpx

CHUNKED: Final = -1
"""The length of a body that is sent in chunks."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_HEAD = re.compile(
    _TOKEN + rb" [!-~\x80-\xff]+ HTTP/1\.1\r\n"  # the request line
    rb"(?:" + _TOKEN + rb":[^\r\n\0]*\r\n)*\r\n"  # field lines
)


def encode_head(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    """The head of a request, and the length in bytes of the body that it announces, or `CHUNKED`.

    Names and values are sent as they are. Raises `httpx.LocalProtocolError` for those that would not be read back as
    the same fields (a line break, a NUL, a name that is no token), and for a body announced twice (RFC 9112, 6.3).
    """
    head = b"\r\n".join(
        [b"%b %b HTTP/1.1" % (method.encode("ascii", "replace"), target), *map(b": ".join, headers), b"", b""]
    )
    # A value with a whole field line in it passes the pattern, and is given away by its line break.
    if _HEAD.fullmatch(head) is None or head.count(b"\n") != len(headers) + 2:
        raise httpx.LocalProtocolError("a method, target or header that HTTP/1.1 cannot carry")

    lengths = [value for name, value in headers if len(name) == 14 and name.lower() == b"content-length"]
    codings = [value for name, value in headers if len(name) == 17 and name.lower() == b"transfer-encoding"]
    if not codings and not lengths:
        return head, 0
    if codings and not lengths and codings[0].lower() == b"chunked" and len(codings) == 1:
        return head, CHUNKED
    if lengths and not codings and lengths[0].isdigit() and len(lengths) == 1:
        return head, int(lengths[0])
    raise httpx.LocalProtocolError("the headers do not say in one way how long the body is")


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` is not empty, since an empty chunk ends the body (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"


def encode_body(body: bytes, length: int) -> bytes:
    """A body that is in memory, framed as its head announced it; `httpx.LocalProtocolError` if it is not that long."""
    if length == CHUNKED:
        return encode_chunk(body) + LAST_CHUNK if body else LAST_CHUNK
    if length != len(body):
        raise httpx.LocalProtocolError(f"a body of {len(body)} bytes, of which the headers announce {length}")
    return body


class ResponseReader:
    """Reads the responses of one connection, one after the other, from bytes cut anywhere.

    - `begin()` makes ready for the response to the next request, `feed()` takes bytes, `end()` says that none follow.
    - `head` turns true once `status`, `headers` and `http_version` are those of the final response.
    - `chunks` holds body that nobody has taken; `take()` gives it as one bytes object.
    - `done` turns true when the response is complete; `malformed` then or before says why it can never be.
    - `reusable`: the response is complete, the server keeps the connection, and nothing came that was not asked for.
    """

    __slots__ = (
        "_bodiless",
        "_excess",
        "_keep_alive",
        "_max_head",
        "_parser",
        "_progressless",
        "chunks",
        "done",
        "head",
        "headers",
        "http_version",
        "malformed",
        "on_body",
        "status",
        "untouched",
    )

    def __init__(self, *, max_head: int) -> None:
        self._max_head = max_head
        self.chunks: list[bytes] = []
        self.on_body = self.chunks.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.begin(bodiless=False)

    def begin(self, *, bodiless: bool) -> None:
        """Make ready for a response, which is `bodiless` when it answers HEAD."""
        self._bodiless = bodiless
        self._excess = False  # bytes came after the end of the response
        self._keep_alive = False
        self._progressless = 0  # bytes that have come since the last that ended a head or brought body
        self.untouched = True  # no byte has come
        self.head = False
        self.done = False
        self.status = 0
        self.http_version = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.malformed: str | None = None
        self.chunks.clear()

    def feed(self, data: bytes) -> None:
        """Read bytes as they came; the attributes say what they brought."""
        if self.done:
            self._excess = True
            return
        if not self.head:
            self.untouched = False
            data = self._feed_head(data)
            if not data:
                return
        before = len(self.chunks)
        self._parse(data)
        if len(self.chunks) != before:
            self._progressless = 0
        elif not self.done:
            # Chunk extensions and trailers are not kept, but an endless one would be, in the parser.
            self._progressless += len(data)
            if self._progressless > self._max_head:
                self.malformed = f"{self._progressless} bytes of chunk heads or trailers without body"

    def end(self) -> bool:
        """No more bytes will come: whether the response is complete with that."""
        if self.head and not self.done and self.malformed is None and _ends_with_connection(self.headers):
            self.done = True
        return self.done

    def take(self) -> bytes:
        """All body that has come since the last call, b"" if none."""
        chunks = self.chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        return data

    def close(self) -> None:
        """Let go of the parser, which refers back to this reader; what was read stays."""
        self._parser = None

    @property
    def reusable(self) -> bool:
        return self.done and self._keep_alive and not self._excess

    def _feed_head(self, data: bytes) -> bytes:
        """Read no further than the largest head goes; what is left if the head ended within that."""
        room = self._max_head - self._progressless
        self._progressless += min(room, len(data))
        self._parse(data[:room])
        if self.head:
            self._progressless = 0
            if self._bodiless:
                self.chunks.clear()  # a body to HEAD is no part of the response
                return b""
        elif self._progressless >= self._max_head and self.malformed is None:
            self.malformed = f"a head of more than {self._max_head} bytes"
        rest = data[room:]
        if self.done and rest:
            self._excess = True
        return rest if self.head and not self.done else b""

    def _parse(self, data: bytes) -> None:
        if self._parser is None or self.malformed is not None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.malformed = "a switch to another protocol that was not asked for"
        except httptools.HttpParserError as error:
            if self.done:
                self._excess = True
            else:
                self.malformed = str(error)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.done:
            # The parser has to stop here: else the body of what nobody asked for would be taken for more of this one.
            raise httptools.HttpParserError("a response that was not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head:  # else a trailer
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.head or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        self.http_version = b"HTTP/" + self._parser.get_http_version().encode()
        self.head = True
        if self._bodiless:
            self.done = True  # and never `_keep_alive`, as the parser waits for a body

    def on_message_complete(self) -> None:
        if self.head and not self.done and self._parser is not None:
            self.done = True
            self._keep_alive = self._parser.should_keep_alive()


def _ends_with_connection(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a response with these headers has no length of its own (RFC 9112 section 6.3, point 8)."""
    fields = {name.lower(): value for name, value in headers}
    coding = fields.get(b"transfer-encoding")
    if coding is not None:
        return not coding.strip().lower().endswith(b"chunked")
    return b"content-length" not in fields
