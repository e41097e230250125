"""The proxy before Redis that delays what routers send each other."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.routing.delay_proxy import DelayProxy
from tests.support.waiting import eventually

DELAY = 0.02


@asynccontextmanager
async def echo_server(path: Path) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """The connections that are open."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while data := await reader.read(65536):
            writer.write(data)
        connections.remove(writer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield connections


async def connect(proxy: DelayProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", urlsplit(proxy.url).port)


async def test_bytes_are_late_once_in_each_direction(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with echo_server(tmp_path / "s"), DelayProxy(tmp_path / "s", DELAY) as proxy:
        reader, writer = await connect(proxy)
        sent = loop.time()
        for _ in range(50):
            writer.write(b"piece")
            await asyncio.sleep(0)
        assert await reader.readexactly(250) == b"piece" * 50
        assert loop.time() - sent >= 2 * DELAY
        writer.close()


async def test_a_connection_that_its_client_resets_is_closed_to_the_server(tmp_path: Path) -> None:
    async with echo_server(tmp_path / "s") as connections, DelayProxy(tmp_path / "s", DELAY) as proxy:
        _, writer = await connect(proxy)
        await eventually(lambda: connections)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await eventually(lambda: not connections)
