"""What is written in one turn of the loop goes out at its end.

Theory. A write to a socket wakes whoever reads at its other end, and to wake somebody costs more than to write. Of a
hundred streams that have an event each in one turn, the first write wakes the reader, and the others, if they follow at
once, find him awake; written as they are made, each finds him asleep again. And what one connection gets in several
parts in a turn is one write.
"""

import asyncio
from typing import Final

_LARGE: Final = 16 * 1024  # bytes that do not wait for the end of the turn: to wake a reader is little beside them


class Sender:
    """What one connection has to say.

    `is_full`: the other end does not take it as fast as it comes; who owns the connection says so.
    """

    __slots__ = ("_loop", "_outbox", "_transport", "_unsent", "is_full")

    def __init__(self, transport: asyncio.Transport, outbox: "Outbox", loop: asyncio.AbstractEventLoop) -> None:
        self.is_full = False
        self._transport = transport
        self._outbox = outbox
        self._loop = loop
        self._unsent = b""

    def write(self, data: bytes) -> None:
        """Sends this, at the latest when this turn of the loop ends."""
        if self._unsent:
            data = self._unsent + data
        else:
            self._outbox.add(self, self._loop)
        self._unsent = data
        if len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Sends what has been written."""
        data, self._unsent = self._unsent, b""
        if data:
            self._transport.write(data)

    def drop(self) -> None:
        """Forgets what has been written: nobody is there any more."""
        self._unsent = b""


class Outbox:
    """Has senders send before the loop waits again, in the order in which they asked for it."""

    __slots__ = ("_senders",)

    def __init__(self) -> None:
        self._senders: list[Sender] = []

    def add(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        """Has it flush at the end of this turn; it need not ask again until it has."""
        if not self._senders:
            loop.call_soon(self._flush, loop)
        self._senders.append(sender)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        senders, self._senders = self._senders, []
        sent = 0
        try:
            for sender in senders:
                sent += 1
                sender.flush()
        finally:
            for sender in senders[sent:]:  # one has raised, which is not the fault of the others
                self.add(sender, loop)
