"""What is written in one turn of the loop goes out at its end.

Theory. A write to a socket wakes whoever reads at its other end, and to wake somebody costs more than to write. Of a
hundred streams that have an event each in one turn, the first write wakes the reader, and the others, if they follow at
once, find him awake; written as they are made, each finds him asleep again. And what one connection gets in several
parts in a turn is one write.
"""

import asyncio
from typing import Protocol


class Writer(Protocol):
    """Somebody who has something to write."""

    def flush(self) -> None:
        """Writes it."""


class Outbox:
    """Has writers write before the loop waits again, in the order in which they asked for it."""

    __slots__ = ("_writers",)

    def __init__(self) -> None:
        self._writers: list[Writer] = []

    def add(self, writer: Writer, loop: asyncio.AbstractEventLoop) -> None:
        """Has it write at the end of this turn; it need not ask again until it has."""
        if not self._writers:
            loop.call_soon(self._flush, loop)
        self._writers.append(writer)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        writers, self._writers = self._writers, []
        turns = iter(writers)
        try:
            for writer in turns:
                writer.flush()
        finally:
            for writer in turns:  # one has raised, which is not the fault of the others
                self.add(writer, loop)
