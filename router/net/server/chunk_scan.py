"""Finds where a chunked body ends. httptools parses and checks it, but does not show where the next request begins.

Source: RFC 9112, section 7.1.
"""


class ChunkScan:
    """The end of one body; `find_end` gets its bytes in order, after httptools has accepted them."""

    __slots__ = ("_in_trailers", "_line", "_skip")

    def __init__(self) -> None:
        self._skip = 0  # bytes of the current chunk that are to come, with the line end after them
        self._line = bytearray()  # the beginning of a line that is not complete
        self._in_trailers = False

    @property
    def line_bytes(self) -> int:
        """Bytes so far of a line that is not complete: of a chunk's size with its extensions, or of a trailer."""
        return len(self._line)

    def find_end(self, data: bytes | bytearray, begin: int) -> int:
        """The offset after the body, which goes on at `begin`; -1 if its end has not come."""
        while True:
            line_at = begin + self._skip
            if line_at > len(data):
                self._skip = line_at - len(data)
                return -1
            self._skip = 0
            end = data.find(b"\n", line_at)
            if end < 0:
                self._line += data[line_at:]
                return -1
            line = (self._line + data[line_at:end]).rstrip(b"\r")
            self._line.clear()
            begin = end + 1
            if not self._in_trailers:
                size = int(line.partition(b";")[0], 16)
                self._in_trailers = size == 0
                self._skip = size + len(b"\r\n") if size else 0
            elif not line:
                return begin
