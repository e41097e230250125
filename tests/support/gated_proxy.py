"""A proxy in front of Redis, in the test's process, that blocks one kind of connections, or drops a reply."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self

from router.net.tasks import cancel_and_wait
from tests.support.fault_proxy import HasSocket

ConnectionKind = Literal["listening", "commands"]

# A connection for commands sends one of these early, a listening connection none of them.
_COMMANDS: Final = (b"EXISTS", b"HMGET", b"XRANGE")


class _GatedConnection:
    """One connection, whose kind is derived from the commands that it has sent so far."""

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
    """Forwards bytes between routers and a Redis; `url` is where it listens.

    - `block` cuts all connections of a kind, and new ones, until `unblock`.
    - `lose_reply_to`: a text. Redis executes the next batch that contains it, but the connection is cut instead of
      forwarding the replies; then `reply_lost` is set.
    """

    def __init__(self, server: HasSocket) -> None:
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
        while self._tasks:  # not cancelled: asyncio's streams report that as a failed callback
            for connection in self._connections:
                connection.cut()
            await asyncio.wait(self._tasks, timeout=0.01)
        for _ in range(3):
            await asyncio.sleep(0)  # a transport closes its socket in a later iteration of the event loop

    def block(self, *kinds: ConnectionKind) -> None:
        self._blocked.update(kinds)
        for connection in self._connections:
            if connection.kind in self._blocked:
                connection.cut()

    def unblock(self, *kinds: ConnectionKind) -> None:
        self._blocked.difference_update(kinds)

    def has_connection(self, kind: ConnectionKind) -> bool:
        return any(connection.kind == kind for connection in self._connections)

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
        replies_task = asyncio.ensure_future(self._forward_replies(proxied, from_server, writer))
        try:
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    proxied.classify(data)
                    if proxied.kind in self._blocked:
                        break
                    if self.lose_reply_to is not None and self.lose_reply_to in data:
                        self.lose_reply_to, proxied.loses_replies = None, True
                    to_server.write(data)
        finally:
            self._connections.discard(proxied)
            proxied.cut()
            await cancel_and_wait(replies_task)

    async def _forward_replies(
        self, proxied: _GatedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                # The first bytes from Redis after the batch are its replies, so Redis has executed it.
                if proxied.loses_replies:
                    self.reply_lost.set()
                    break
                writer.write(data)
        proxied.cut()
