"""A proxy before one Redis, in the test's process, that shuts one kind of a router's connections, or loses a reply."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self

from router.net.tasks import cancel_and_wait
from tests.support.redis_process import RedisServer

ConnectionKind = Literal["listening", "commands"]

_COMMANDS: Final = (b"EXISTS", b"HMGET", b"XRANGE")  # what a connection for commands sends soon, and the other never


class _GatedConnection:
    """One connection, whose kind is known from what it has sent so far."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.kind: ConnectionKind | None = None
        self.loses_replies = False
        self._writers = (client, server)

    def classify(self, sent: bytes) -> None:
        if b"TRACKING" in sent:
            self.kind = "listening"
        elif self.kind is None and any(name in sent for name in _COMMANDS):
            self.kind = "commands"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class GatedProxy:
    """Passes bytes between routers and a Redis; `url` is where it listens.

    - `shut` cuts all connections of a kind, and those that come, until `open`.
    - `lose_reply_to`: a text. Of the next batch that has it, the commands are done and the connection is cut instead of
      its replies being passed back; `lost` is set then.
    """

    def __init__(self, server: RedisServer) -> None:
        self.url = ""
        self.lose_reply_to: bytes | None = None
        self.reply_lost = asyncio.Event()
        self._server = server
        self._blocked: set[ConnectionKind] = set()
        self._connections: set[_GatedConnection] = set()
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listening is not None
        self._listening.close()
        await cancel_and_wait(*self._tasks)
        for _ in range(3):
            await asyncio.sleep(0)  # a transport closes its socket in a later turn of the loop

    def block(self, *kinds: ConnectionKind) -> None:
        self._blocked.update(kinds)
        for one in self._connections:
            if one.kind in self._blocked:
                one.cut()

    def unblock(self, *kinds: ConnectionKind) -> None:
        self._blocked.difference_update(kinds)

    def has_connection(self, kind: ConnectionKind) -> bool:
        """Whether there is a connection of a kind."""
        return any(one.kind == kind for one in self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            from_server, to_server = await asyncio.open_unix_connection(str(self._server.socket))
        except BaseException:
            writer.transport.abort()
            raise
        proxied = _GatedConnection(writer, to_server)
        self._connections.add(proxied)
        back = asyncio.ensure_future(self._forward_replies(proxied, from_server, writer))
        try:
            with suppress(ConnectionError):
                while sent := await reader.read(65536):
                    proxied.classify(sent)
                    if proxied.kind in self._blocked:
                        break
                    if self.lose_reply_to is not None and self.lose_reply_to in sent:
                        self.lose_reply_to, proxied.loses_replies = None, True
                    to_server.write(sent)
        finally:
            self._connections.discard(proxied)
            proxied.cut()
            await cancel_and_wait(back)

    async def _forward_replies(
        self, proxied: _GatedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while replied := await reader.read(65536):
                if proxied.loses_replies:
                    self.reply_lost.set()
                    break
                writer.write(replied)
        proxied.cut()
