"""A TCP proxy before a Redis server, in the test's process, with faults of single connections."""

import asyncio
import contextlib
import re
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from tests.support.listeners import stop_listening

ConnectionKind = Literal["commands", "listening"]
"""A connection for lookups and writes, or one that receives invalidations."""

_PREFIX_SIZE: Final = 4096  # bytes; what shows the kind of a connection fits into them
_READ_SIZE: Final = 65536


class ReplyRate(NamedTuple):
    """How fast replies pass on one connection: in pieces of `piece_size` bytes; none after `stall_after` bytes."""

    bytes_per_second: float
    piece_size: int = _READ_SIZE
    stall_after: float = float("inf")


class ProxiedConnection:
    """One connection: bytes pass in each direction while its gate is open, each piece `delay` seconds later.

    - `kind`: None until the client has sent more than its handshake.
    - `is_named`: whether the client has set the name that the proxy looks for.
    - `drops_replies`: replies of the server are dropped.
    """

    def __init__(self, name: str | None, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.kind: ConnectionKind | None = None
        self.is_named = name is None
        self.is_cut = False
        self.drops_replies = False
        self.delay = 0.0
        self.commands, self.replies = asyncio.Event(), asyncio.Event()
        self.open()
        # A RESP array, in which each word follows its length, or an inline command.
        self._naming = re.compile(rb"SETNAME(\r\n\$\d+\r\n| )%b\r\n" % re.escape((name or "").encode()))
        self._writers = (client, server)
        self._begun = b""

    def open(self) -> None:
        self.commands.set()
        self.replies.set()

    def hold(self) -> None:
        self.commands.clear()
        self.replies.clear()

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()
        self.open()

    def classify(self, sent: bytes) -> None:
        """Only the client's first bytes name the connection and its kind."""
        if len(self._begun) < _PREFIX_SIZE:
            self._begun += sent
            self.is_named = self.is_named or self._naming.search(self._begun) is not None
            if b"TRACKING" in self._begun:
                self.kind = "listening"
            elif b"HELLO" not in sent:
                self.kind = "commands"


class TcpProxy:
    """Forwards bytes in both directions between its port and `target`, a Unix socket or a port of this machine.

    `target` is that of new connections; `reply_rate` is that of all connections, None for no limit. These faults are of
    all connections of a kind, new ones too, until `release`:

    - `hold`: nothing passes in either direction.
    - `refuse`: they are cut.
    - `drop_replies`: the server gets commands, and its replies are dropped.

    `name`: that of the clients in whose connections a test is interested; see ProxiedConnection.
    """

    def __init__(self, target: Path | str | int, *, name: str | None = None) -> None:
        self.target = target
        self.reply_rate: ReplyRate | None = None
        self.connections: list[ProxiedConnection] = []
        self.url = ""
        self._name = name
        self._held: set[ConnectionKind | None] = set()
        self._refused: set[ConnectionKind | None] = set()
        self._dropped: set[ConnectionKind | None] = set()
        self._command: bytes | None = None
        self._reply_dropped = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._listener is not None
        await stop_listening(self._listener)
        while self._tasks:  # not cancelled: asyncio's streams report that as a failed callback
            self.cut("commands", "listening", None)
            await asyncio.wait(self._tasks, timeout=0.01)

    # -- faults -------------------------------------------------------------------------------------------------------

    def hold(self, *kinds: ConnectionKind) -> None:
        self._held.update(kinds)
        for connection in self._of(*kinds):
            connection.hold()

    def refuse(self, *kinds: ConnectionKind) -> None:
        self._refused.update(kinds)
        self.cut(*kinds)

    def drop_replies(self, *kinds: ConnectionKind) -> None:
        self._dropped.update(kinds)

    def drop_replies_from(self, command: bytes) -> asyncio.Event:
        """Drops the replies to the next batch that contains this, and all later ones on its connection.

        The event is set when the server has replied. Other connections, and new ones, are as before.
        """
        self._command, self._reply_dropped = command, asyncio.Event()
        return self._reply_dropped

    def release(self, *kinds: ConnectionKind) -> None:
        """Ends the faults of these kinds, or of all."""
        for affected in (self._held, self._refused, self._dropped):
            affected.difference_update(kinds or list(affected))
        for connection in self.connections:
            if connection.kind not in self._held:
                connection.open()

    def cut(self, *kinds: ConnectionKind | None) -> None:
        """Ends the existing connections of these kinds."""
        for connection in self._of(*kinds):
            connection.cut()

    def has_connection(self, kind: ConnectionKind) -> bool:
        return bool(self._of(kind))

    def _of(self, *kinds: ConnectionKind | None) -> list[ProxiedConnection]:
        return [each for each in self.connections if each.kind in kinds and not each.is_cut]

    # -- connections --------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_server, to_server = await self._connect()
        except OSError:  # Redis is down
            writer.transport.abort()
            return
        connection = ProxiedConnection(self._name, writer, to_server)
        self.connections.append(connection)
        forwarders = [
            asyncio.ensure_future(self._forward_commands(connection, reader, to_server)),
            asyncio.ensure_future(self._forward_replies(connection, from_server, writer)),
        ]
        try:
            await asyncio.wait(forwarders, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.connections.remove(connection)
            for forwarder in forwarders:
                forwarder.cancel()
            await asyncio.wait(forwarders)
            connection.cut()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.target, int):
            return await asyncio.open_connection("127.0.0.1", self.target)
        return await asyncio.open_unix_connection(str(self.target))

    async def _forward_commands(
        self, connection: ProxiedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):  # one side has closed
            while data := await reader.read(_READ_SIZE):
                connection.classify(data)
                if connection.kind in self._refused:
                    return
                if connection.kind in self._held:
                    connection.hold()
                if self._command is not None and self._command in data:
                    connection.drops_replies, self._command = True, None
                await _pass(connection, connection.commands)
                writer.write(data)
                await writer.drain()

    async def _forward_replies(
        self, connection: ProxiedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        due, sent = 0.0, 0
        with contextlib.suppress(OSError):  # one side has closed
            while data := await reader.read(_READ_SIZE):
                await _pass(connection, connection.replies)
                if connection.drops_replies:
                    self._reply_dropped.set()
                    continue
                if connection.kind in self._dropped:
                    continue
                while data:
                    piece = data
                    if (rate := self.reply_rate) is not None:
                        piece = data[: rate.piece_size]
                        # A rate over time rather than a sleep per piece, so that late wake-ups do not add up.
                        due = max(due, clock()) + len(piece) / rate.bytes_per_second
                        await asyncio.sleep(due - clock())
                        sent += len(piece)
                        if sent > rate.stall_after:
                            await asyncio.Event().wait()
                    data = data[len(piece) :]
                    writer.write(piece)
                    await writer.drain()


async def _pass(connection: ProxiedConnection, gate: asyncio.Event) -> None:
    """Waits after the read, so that one piece per direction is in the proxy while the gate is closed."""
    if connection.delay:
        await asyncio.sleep(connection.delay)
    await gate.wait()
