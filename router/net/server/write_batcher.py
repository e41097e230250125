"""What is written in one turn of the loop goes out at its end.

Theory. A write to a socket wakes whoever reads at its other end, and to wake somebody costs more than to write. Of a
hundred streams that have an event each in one turn, the first write wakes the reader, and the others, if they follow at
once, find him awake; written as they are made, each finds him asleep again. And what one connection gets in several
parts in a turn is one write.
"""

import asyncio
from typing import Final

_FLUSH_THRESHOLD: Final = (
    16 * 1024
)  # bytes that do not wait for the end of the turn: to wake a reader is little beside them


class BufferedWriter:
    """What one connection has to say.

    `is_full`: the other end does not take it as fast as it comes; who owns the connection says so.
    """

    __slots__ = ("_batcher", "_buffer", "_loop", "_transport", "is_full")

    def __init__(self, transport: asyncio.Transport, batcher: "WriteBatcher", loop: asyncio.AbstractEventLoop) -> None:
        self.is_full = False
        self._transport = transport
        self._batcher = batcher
        self._loop = loop
        self._buffer = b""

    def write(self, data: bytes) -> None:
        """Sends this, at the latest when this turn of the loop ends."""
        if self._buffer:
            data = self._buffer + data
        else:
            self._batcher.schedule_flush(self, self._loop)
        self._buffer = data
        if len(data) > _FLUSH_THRESHOLD:
            self.flush()

    def flush(self) -> None:
        """Sends what has been written."""
        data, self._buffer = self._buffer, b""
        if data:
            self._transport.write(data)

    def discard(self) -> None:
        """Forgets what has been written: nobody is there any more."""
        self._buffer = b""


class WriteBatcher:
    """Has senders send before the loop waits again, in the order in which they asked for it."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[BufferedWriter] = []

    def schedule_flush(self, writer: BufferedWriter, loop: asyncio.AbstractEventLoop) -> None:
        """Has it flush at the end of this turn; it need not ask again until it has."""
        if not self._pending:
            loop.call_soon(self._flush_all, loop)
        self._pending.append(writer)

    def _flush_all(self, loop: asyncio.AbstractEventLoop) -> None:
        senders, self._pending = self._pending, []
        sent = 0
        try:
            for sender in senders:
                sent += 1
                sender.flush()
        finally:
            for sender in senders[sent:]:  # one has raised, which is not the fault of the others
                self.schedule_flush(sender, loop)
