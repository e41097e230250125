"""Records what a router sends to Redis for one request: a relay on a Unix socket that keeps the bytes."""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.load import bodies
from benchmarks.processes import running_routers
from lab.redis_limits.client import ask
from router.shared.scripts import DELETE_IF_SAME
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

ENTRY_KEY: Final = re.compile(rb"rh:1:default:bare:[0-9a-f]+:[0-9a-f]+:([0-9a-f]+)")
"""The key of an entry; its last part differs in each request of benchmarks/load.py."""


class Recording(NamedTuple):
    """What a router sends. `hit`, `miss`: the batches of one request, each after the reply to the one before.

    `listener`: the bytes with which a router subscribes to changes. `digest`: the last part of the entry's key.
    """

    hit: list[bytes]
    miss: list[bytes]
    listener: bytes
    digest: bytes


class Relay:
    """Passes connections on to a Redis, and keeps what is sent to it: `chunks` of all, `by_connection` in order."""

    def __init__(self, redis: RedisServer, path: Path) -> None:
        self.url = f"unix://{path}"
        self.chunks: list[bytes] = []
        self.by_connection: list[list[bytes]] = []
        self._redis = redis
        self._path = path

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, self._path)
        try:
            yield
        finally:
            server.close()

    def find_listener(self) -> bytes | None:
        """With what a router subscribed to changes, up to its first PING; None if it has not done so yet.

        A router also tries single commands, SUBSCRIBE among them, over connections of their own.
        """
        for sent in map(b"".join, self.by_connection):
            if b"TRACKING" in sent and (end := sent.find(b"PING\r\n", sent.find(b"SUBSCRIBE"))) >= 0:
                return sent[: end + len(b"PING\r\n")]
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(str(self._redis.socket))
        own: list[bytes] = []
        self.by_connection.append(own)

        def keep(data: bytes) -> None:
            self.chunks.append(data)
            own.append(data)

        replies = asyncio.create_task(_copy(upstream_reader, writer))
        try:
            await _copy(reader, upstream_writer, keep)
        finally:
            replies.cancel()
            writer.close()
            upstream_writer.close()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: Callable[[bytes], object] = lambda _: None
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            keep(data)
            writer.write(data)
            await writer.drain()


async def record(redis: RedisServer) -> Recording:
    """Starts a router over a running Redis, sends it one request twice, and returns the bytes of both."""
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        relay = Relay(redis, Path(folder) / "relay.sock")
        async with relay.running(), running_routers(redis=relay, local="0B") as (router,):
            listener = await eventually(relay.find_listener)
            warm, body = islice(bodies(stream=False, name="recorded"), 2)
            await ask(router.port, warm)  # opens the connection to the engine
            await _ask(router.port, warm, "HIT")
            relay.chunks.clear()
            await _ask(router.port, body, "MISS")
            await eventually(lambda: DELETE_IF_SAME.encode() in b"".join(relay.chunks))  # the release, which is last
            miss = [*relay.chunks]
            relay.chunks.clear()
            await _ask(router.port, body, "HIT")
            hit = [*relay.chunks]
        digest = next(found[1] for chunk in hit if (found := ENTRY_KEY.search(chunk)))
    return Recording(list(_about(digest, hit)), list(_about(digest, miss)), listener, digest)


async def _ask(port: int, body: bytes, status: str) -> None:
    answer = await ask(port, body)
    if answer.cache != status:
        raise RuntimeError(f"{answer} is no {status}")


def _about(digest: bytes, chunks: list[bytes]) -> Iterator[bytes]:
    """The batches with commands for an entry; the others are periodic."""
    return (chunk for chunk in chunks if digest in chunk)
