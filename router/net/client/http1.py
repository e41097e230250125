"""HTTP/1.1 responses as a client reads them, without I/O: bytes to a response (RFC 9112).

The reader wraps `httptools.HttpResponseParser` (llhttp), which calls back into it. What runs for every header is kept
out of Python: `on_body` is the `append` of a list, `on_header` the `__setitem__` of a dictionary.

Engines send one chunk an event, and most are read whole and alone. Such a chunk is what its length says that it must
be: only one size line goes with so many bytes. So between two chunks it is compared with that, and the parser never
sees it: to the parser, what stands between two borders is as if it had not been sent.

What llhttp leaves to its user is settled here:

- interim (1xx) responses come as messages of their own; they are dropped
- a body without a length ends with the connection, which only `end()` can tell
- what follows a complete response was not asked for; it is noted in `reusable`, and never read as a response
- nothing limits a head; `max_head` does, the same wherever the input is cut
"""

from collections.abc import Callable, Mapping
from typing import Final

import httptools

_PARSE_ERRORS: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)


def _size_lines(max_length: int) -> tuple[bytes, ...]:
    """How a chunk of so many bytes, borders included, begins: by their number; b"" where there is no such chunk."""
    lines = [b""] * (max_length + 1)
    for size in range(1, max_length):
        line = b"%x\r\n" % size
        if (length := len(line) + size + 2) <= max_length:
            lines[length] = line
    return tuple(lines)


_SIZE_LINES: Final = _size_lines(4096)
_CRLF: Final = b"\r\n"


class ResponseReader:
    """Reads the responses of one connection, one after the other, from bytes cut anywhere.

    - `begin()` makes ready for the response to the next request, `feed()` takes bytes and gives the body that they had,
      `end()` says that none follow.
    - `head` turns true once `status` and `headers` are those of the final response; of a header that came twice, the
      last counts.
    - `done` turns true when the response is complete; `malformed` then or before says why it can never be.
    - `reusable`: the response is complete, the server keeps the connection, and nothing came that was not asked for.
    """

    __slots__ = (
        "_at_chunk_boundary",
        "_body",
        "_bytes_without_progress",
        "_excess",
        "_header_fields",
        "_keep_alive",
        "_max_head",
        "_parse",
        "_parser",
        "done",
        "head_complete",
        "headers",
        "malformed",
        "nothing_received",
        "on_body",
        "on_header",
        "status",
    )

    def __init__(self, *, max_head: int) -> None:
        self._max_head = max_head
        self._body: list[bytes] = []
        self.on_body = self._body.append
        self._header_fields: dict[bytes, bytes] = {}  # trailers too, which nobody reads
        self.on_header = self._header_fields.__setitem__
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parse: Callable[[bytes], object] = self._parser.feed_data
        self.begin()

    def begin(self) -> None:
        """Make ready for a response."""
        self._excess = False  # bytes came after the end of the response
        self._keep_alive = False
        self._at_chunk_boundary = False  # the last byte was that of a chunk's end
        self._bytes_without_progress = 0  # bytes that have come since the last that ended a head or brought body
        self.nothing_received = True  # no byte has come
        self.head_complete = False
        self.done = False
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.malformed: str | None = None
        self._header_fields.clear()
        self._body.clear()

    def feed(self, data: bytes) -> bytes:
        """Read bytes as they came; the body that they brought, b"" if none. The attributes say what else they did."""
        if self._at_chunk_boundary and len(data) < len(_SIZE_LINES):
            line = _SIZE_LINES[len(data)]
            if line and data.startswith(line) and data.endswith(_CRLF):
                self._bytes_without_progress = 0
                return data[len(line) : -2]
        if self.done:
            self._excess = True
            return b""
        try:
            if not self.head_complete:
                self.nothing_received = False
                data = self._feed_head(data)
            if data:
                self._parse(data)
            # What begins behind a chunk without reaching the end of its size line does not end like this.
            self._at_chunk_boundary = self._at_chunk_boundary and data.endswith(_CRLF)
        except _PARSE_ERRORS as error:
            self._on_parse_error(error)
        body = self._body
        if body:
            self._bytes_without_progress = 0
            if len(body) == 1:
                return body.pop()
            whole = b"".join(body)
            body.clear()
            return whole
        if self.head_complete and not self.done:
            # Chunk extensions and trailers are not kept, but an endless one would be, in the parser.
            self._bytes_without_progress += len(data)
            if self._bytes_without_progress > self._max_head:
                self._mark_malformed(f"{self._bytes_without_progress} bytes of chunk heads or trailers without body")
        return b""

    def feed_eof(self) -> bool:
        """No more bytes will come: whether the response is complete with that."""
        if self.head_complete and not self.done and self.malformed is None and self._is_close_delimited():
            self.done = True
        return self.done

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, whose name is given in lower case."""
        return {key.lower(): value for key, value in self.headers.items()}.get(name)

    def close(self) -> None:
        """Let go of the parser, which refers back to this reader; what was read stays."""
        self._parser = None
        self._parse = _discard

    @property
    def reusable(self) -> bool:
        return self.done and self._keep_alive and not self._excess

    def _feed_head(self, data: bytes) -> bytes:
        """Read no further than the largest head goes; what is left if the head ended within that."""
        room = self._max_head - self._bytes_without_progress
        self._bytes_without_progress += min(room, len(data))
        self._parse(data[:room])
        if self.head_complete:
            self._bytes_without_progress = 0
        elif self._bytes_without_progress >= self._max_head and self.malformed is None:
            self._mark_malformed(f"a head of more than {self._max_head} bytes")
        rest = data[room:]
        if self.done and rest:
            self._excess = True
        return rest if self.head_complete and not self.done else b""

    def _is_close_delimited(self) -> bool:
        """Whether a response with these headers has no length of its own (RFC 9112 section 6.3, point 8)."""
        coding = self.header(b"transfer-encoding")
        if coding is not None:
            return not coding.strip().lower().endswith(b"chunked")
        return self.header(b"content-length") is None

    def _on_parse_error(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserUpgrade):
            self._mark_malformed("a switch to another protocol that was not asked for")
        elif self.done:
            self._excess = True
        else:
            self._mark_malformed(str(error))

    def _mark_malformed(self, reason: str) -> None:
        self.malformed = reason
        self._at_chunk_boundary = False
        self._parse = _discard

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.done:
            # The parser has to stop here: else the body of what nobody asked for would be taken for more of this one.
            raise httptools.HttpParserError("a response that was not asked for")

    def on_headers_complete(self) -> None:
        if self.head_complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.headers = self._header_fields.copy()
            self.head_complete = True
        self._header_fields.clear()

    def on_chunk_header(self) -> None:
        self._at_chunk_boundary = False

    def on_chunk_complete(self) -> None:
        self._at_chunk_boundary = True

    def on_message_complete(self) -> None:
        self._at_chunk_boundary = False
        if self.head_complete and not self.done and self._parser is not None:
            self.done = True
            self._keep_alive = self._parser.should_keep_alive()


def _discard(data: bytes) -> None:
    """What comes after something that was no HTTP is of no interest."""
