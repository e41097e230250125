"""A scripted Redis server on a real socket or in a virtual network, and a RedisConnection to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from router.net.redis.connection import RedisConnection
from router.net.redis.errors import RedisBackendError
from router.net.redis.handshake import Handshake
from tests.support.waiting import TEST_TIMEOUT, eventually

_ANONYMOUS: Final = Handshake(None, None, 0, None)
_HELLO: Final = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class RedisPeer:
    """Answers the handshake; the test sends the rest."""

    def __init__(self) -> None:
        self.received = b""
        self.left = False
        self._writer: Any = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(_HELLO)
        try:
            while data := await reader.read(65536):
                self.received += data
        except ConnectionError:
            pass
        self.left = True
        writer.close()

    async def send(self, *pieces: bytes) -> None:
        """Sends each of them in its own packet."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    def leave(self) -> None:
        self._writer.close()


class ConnectedPair:
    """A server and a connection to it, which records what was `refused` and `pushed`, and whether it is `lost`."""

    def __init__(self, server: RedisPeer) -> None:
        self.server = server
        self.refused: list[Exception] = []
        self.pushed: list[list[Any]] = []
        self.lost: list[RedisBackendError] = []
        self.connection = RedisConnection(
            on_error_reply=self.refused.append, on_push=self.pushed.append, on_lost=self.lost.append
        )


@asynccontextmanager
async def connected_pair() -> AsyncIterator[ConnectedPair]:
    server = RedisPeer()
    async with AsyncExitStack() as stack:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        stack.callback(listening.close)
        port = listening.sockets[0].getsockname()[1]
        pair = ConnectedPair(server)
        stack.callback(pair.connection.abort)
        await pair.connection.connect(("127.0.0.1", port), _ANONYMOUS, TEST_TIMEOUT)
        yield pair
        pair.connection.abort()
        await eventually(lambda: server.left)
