"""A TCP proxy in front of a Redis server, which can hold or cut connections by their purpose."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol

ConnectionKind = Literal["commands", "listening"]
"""A connection for lookups and writes, or one that receives invalidations."""

_LISTENING: Final = b"TRACKING"


class HasSocket(Protocol):
    """A Redis server: its Unix socket."""

    @property
    def socket(self) -> Path | str: ...


class FaultProxy:
    """Forwards bytes in both directions, connection by connection.

    - `hold`: nothing passes, in either direction, on the connections of a kind (or of any), nor on new ones.
    - `cut` ends the existing connections; while `refuse` is on, new ones of that kind end as soon as their kind is
      known.
    - `drop_replies`: replies of Redis on connections of a kind are dropped, until `release`.
    - `drop_replies_from`: once a command with a name has been forwarded, all replies on its connection are dropped; the
      event that it returns is set then. Other connections, and new ones, are as before.
    """

    def __init__(self, server: HasSocket) -> None:
        self._server = server
        self._listener: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._held: set[ConnectionKind] = set()
        self._dropping: set[ConnectionKind] = set()
        self._refused: set[ConnectionKind] = set()
        self._command: bytes | None = None
        self._command_seen = asyncio.Event()
        self._changed = asyncio.Condition()
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for pipe in list(self._pipes):
            pipe.cut()

    async def hold(self, *kinds: ConnectionKind) -> None:
        await self._update(lambda: self._held.update(kinds or ("commands", "listening")))

    async def drop_replies(self, *kinds: ConnectionKind) -> None:
        await self._update(lambda: self._dropping.update(kinds))

    def drop_replies_from(self, command: bytes) -> asyncio.Event:
        self._command, self._command_seen = command, asyncio.Event()
        return self._command_seen

    async def refuse(self, *kinds: ConnectionKind) -> None:
        await self._update(lambda: self._refused.update(kinds))
        self.cut(*kinds)

    async def release(self) -> None:
        def clear_faults() -> None:
            self._held.clear()
            self._dropping.clear()
            self._refused.clear()

        await self._update(clear_faults)

    def cut(self, *kinds: ConnectionKind) -> None:
        for pipe in list(self._pipes):
            if pipe.kind in kinds:
                pipe.cut()

    async def _update(self, change: Callable[[], None]) -> None:
        async with self._changed:
            change()
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(str(self._server.socket))
        except OSError:  # Redis is down
            writer.close()
            return
        pipe = _Pipe(writer, server_writer)
        self._pipes.add(pipe)
        commands_task = asyncio.ensure_future(self._forward(pipe, reader, server_writer, reply=False))
        replies_task = asyncio.ensure_future(self._forward(pipe, server_reader, writer, reply=True))
        try:
            await asyncio.wait([commands_task, replies_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (commands_task, replies_task):
                task.cancel()
            await asyncio.wait([commands_task, replies_task])
            pipe.cut()
            self._pipes.discard(pipe)

    async def _forward(
        self, pipe: "_Pipe", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reply: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                # The kind is unknown until the first bytes; a connection counts as one for commands until then.
                if not reply and _LISTENING in data:
                    pipe.kind = "listening"
                if not reply and self._command is not None and self._command in data:
                    pipe.replies_dropped, self._command = True, None
                    self._command_seen.set()
                if pipe.kind in self._refused:
                    return
                async with self._changed:
                    # Each piece waits here, so that `hold` also stops connections that are in use.
                    await self._changed.wait_for(lambda: pipe.kind not in self._held)
                if not (reply and (pipe.replies_dropped or pipe.kind in self._dropping)):
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass  # one side has closed


class _Pipe:
    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self.kind: ConnectionKind = "commands"
        self.replies_dropped = False
        self._ends = ends

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
