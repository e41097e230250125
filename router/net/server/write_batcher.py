"""Sends at the end of a loop iteration what was written during it.

Theory. A write to a socket wakes the process that reads the other end, and waking it costs more than the write. Of a
hundred streams with one event each in an iteration, the first write wakes the reader; writes that follow directly find
it awake. Written as they are produced, each write would find it asleep again. Several parts for one connection become
one write.
"""

import asyncio
from typing import Final

# Bytes that are sent without waiting for the end of the iteration: beside so many, waking a reader costs little.
_FLUSH_THRESHOLD: Final = 16 * 1024


class BufferedWriter:
    """The pending output of one connection.

    `is_full`: the transport's buffer is above its limit; the connection sets this.
    """

    def __init__(self, transport: asyncio.Transport, batcher: "WriteBatcher", loop: asyncio.AbstractEventLoop) -> None:
        self.is_full = False
        self._transport = transport
        self._batcher = batcher
        self._loop = loop
        self._buffer = b""

    def write(self, data: bytes) -> None:
        """Sends the bytes when this iteration of the loop ends, or earlier."""
        if self._buffer:
            data = self._buffer + data
        else:
            self._batcher.schedule_flush(self, self._loop)
        self._buffer = data
        # A flush here leaves the scheduled one in place, which then finds nothing to send.
        if len(data) > _FLUSH_THRESHOLD:
            self.flush()

    def flush(self) -> None:
        data, self._buffer = self._buffer, b""
        if data:
            self._transport.write(data)

    def discard(self) -> None:
        """Drops what is pending: the connection is closed."""
        self._buffer = b""


class WriteBatcher:
    """Flushes writers before the loop waits for events again, in the order in which they were scheduled."""

    def __init__(self) -> None:
        self._pending: list[BufferedWriter] = []

    def schedule_flush(self, writer: BufferedWriter, loop: asyncio.AbstractEventLoop) -> None:
        """Flushes the writer at the end of this iteration; once is enough until then."""
        if not self._pending:
            loop.call_soon(self._flush_all, loop)
        self._pending.append(writer)

    def _flush_all(self, loop: asyncio.AbstractEventLoop) -> None:
        writers, self._pending = self._pending, []
        flushed = 0
        try:
            for writer in writers:
                flushed += 1
                writer.flush()
        finally:
            for writer in writers[flushed:]:  # one has raised; the others still have to be flushed
                self.schedule_flush(writer, loop)
