"""HTTP/1.1 responses, parsed without I/O (RFC 9112).

The reader wraps `httptools.HttpResponseParser` (llhttp), which calls back into it. What runs for every header and every
piece of body is C code: `on_body` is the `append` of a list, `on_header` the `__setitem__` of a dictionary.

Engines send one chunk per event, and most reads contain exactly one chunk. The length of such a read determines its
chunk-size line: only one size fits. So between two chunks, a read that begins with that line and ends with CRLF is
unwrapped here, and the parser never sees it: to the parser, the read did not happen.

llhttp leaves these cases to its user:

- Interim (1xx) responses arrive as separate messages; they are dropped.
- A body without a length ends with the connection, which only `feed_eof()` reports.
- Bytes after a complete response were not requested; they make `reusable` false and are never read as a response.
- The size of a head is not limited; `max_head` limits it, with the same result wherever the input is cut.
"""

from collections.abc import Callable, Mapping
from typing import Final

import httptools

_PARSE_ERRORS: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)


def _size_lines(max_length: int) -> tuple[bytes, ...]:
    """The chunk-size line for each total length of a chunk, line and CRLFs included; b"" where no chunk has it."""
    lines = [b""] * (max_length + 1)
    for size in range(1, max_length):
        line = b"%x\r\n" % size
        if (length := len(line) + size + 2) <= max_length:
            lines[length] = line
    return tuple(lines)


# Long enough for the events of streams; a longer chunk goes through the parser.
_SIZE_LINES: Final = _size_lines(4096)
_CRLF: Final = b"\r\n"


class ResponseReader:
    """Reads the responses of one connection, one after the other, from bytes cut anywhere.

    - `begin()` prepares for the response to the next request. `feed()` takes bytes and returns the body in them, b"" if
      none. `feed_eof()` is called at the connection's end and returns whether the response is complete.
    - `head_complete` turns true once `status` and `headers` are those of the final response; of a repeated header, the
      last value counts.
    - `done` turns true when the response is complete; `malformed` is the reason why it never can be.
    - `reusable`: the response is complete, the server keeps the connection open, and nothing unexpected followed.
    """

    def __init__(self, *, max_head: int) -> None:
        self._max_head = max_head
        self._body: list[bytes] = []
        self.on_body = self._body.append
        self._header_fields: dict[bytes, bytes] = {}  # of the head, and of trailers, which are ignored
        self.on_header = self._header_fields.__setitem__
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parse: Callable[[bytes], object] = self._parser.feed_data
        self.begin()

    def begin(self) -> None:
        self._excess = False  # bytes came after the end of the response
        self._keep_alive = False
        self._at_chunk_boundary = False  # the last byte received ended a chunk
        self._bytes_without_progress = 0  # bytes received since the last head or piece of body
        self.nothing_received = True
        self.head_complete = False
        self.done = False
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.malformed: str | None = None
        self._header_fields.clear()
        self._body.clear()

    def feed(self, data: bytes) -> bytes:
        # Exactly one chunk, which the parser need not see: see the module's docstring.
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
            # The parser sets it at the end of a chunk, but does not clear it for the beginning of a size line behind
            # that chunk. Such a beginning does not end with CRLF.
            self._at_chunk_boundary = self._at_chunk_boundary and data.endswith(_CRLF)
        except _PARSE_ERRORS as error:
            self._on_parse_error(error)
        body = self._body
        if body:
            self._bytes_without_progress = 0
            if len(body) == 1:
                return body.pop()
            joined = b"".join(body)
            body.clear()
            return joined
        if self.head_complete and not self.done:
            # Chunk extensions and trailers are not kept here, but the parser would buffer an endless one.
            self._bytes_without_progress += len(data)
            if self._bytes_without_progress > self._max_head:
                self._mark_malformed(f"{self._bytes_without_progress} bytes of chunk heads or trailers without body")
        return b""

    def feed_eof(self) -> bool:
        if self.head_complete and not self.done and self.malformed is None and self._is_close_delimited():
            self.done = True
        return self.done

    def header(self, name: bytes) -> bytes | None:
        """The value of a header. `name` is in lower case."""
        return {key.lower(): value for key, value in self.headers.items()}.get(name)

    def close(self) -> None:
        self._parser = None  # breaks the reference cycle, so that no garbage collection is needed
        self._parse = _discard

    @property
    def reusable(self) -> bool:
        return self.done and self._keep_alive and not self._excess

    def _feed_head(self, data: bytes) -> bytes:
        """Parse at most `max_head` bytes of head. Returns the unparsed rest if the head ended within them."""
        # The parser gets no byte beyond the limit, so the result does not depend on where the input is cut.
        room = self._max_head - self._bytes_without_progress
        self._bytes_without_progress += min(room, len(data))
        self._parse(data[:room])
        if self.head_complete:
            self._bytes_without_progress = 0
        elif self._bytes_without_progress >= self._max_head and self.malformed is None:
            self._mark_malformed(f"a response head of more than {self._max_head} bytes")
        rest = data[room:]
        if self.done and rest:
            self._excess = True
        return rest if self.head_complete and not self.done else b""

    def _is_close_delimited(self) -> bool:
        """Whether the body ends with the connection (RFC 9112 section 6.3, point 8)."""
        coding = self.header(b"transfer-encoding")
        if coding is not None:
            return not coding.strip().lower().endswith(b"chunked")
        return self.header(b"content-length") is None

    def _on_parse_error(self, error: Exception) -> None:
        if isinstance(error, httptools.HttpParserUpgrade):
            self._mark_malformed("an unrequested protocol switch")
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
            # Stops the parser: the body of an unrequested response would otherwise be appended to this one's.
            raise httptools.HttpParserError("an unexpected response")

    def on_headers_complete(self) -> None:
        if self.head_complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status >= 200:  # interim responses are dropped
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
    """Replaces the parser after an error."""
