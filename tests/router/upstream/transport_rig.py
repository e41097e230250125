"""What the tests of the transport share: both event loops, and a server that says byte by byte what it is told to."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvloop

from router.upstream.transport import Transport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on asyncio's event loop and on uvloop; what hangs fails, and what only a log would tell."""

    @pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        complaints: list[dict[str, Any]] = []

        async def bounded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(20):
                await test()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(bounded())
        assert complaints == []

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """The next request with its body, which has a Content-Length or none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return head + await self.reader.readexactly(int(line.split(b":")[1]))
        return head

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def left(self) -> bool:
        """Wait until the client closes: whether it said nothing more before."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Close with a RST, as a machine that dies does."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Server:
    """Accepts connections, and hands each to the test as it comes."""

    def __init__(self) -> None:
        self.accepted = 0
        self.url = ""
        self.writers: list[asyncio.StreamWriter] = []
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def peer(self) -> Peer:
        """The next connection."""
        return await self._peers.get()

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        await self._peers.put(Peer(reader, writer))


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.on_connection, "127.0.0.1", 0, ssl=context, limit=2**20)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/v1/chat/completions"
    try:
        yield server
    finally:
        listener.close()
        for writer in server.writers:
            writer.transport.abort()
        await listener.wait_closed()


@asynccontextmanager
async def rig(**options: Any) -> AsyncIterator[tuple[Transport, Server]]:
    """A transport and a server; at the end nothing may be in use any more.

    Nothing expires unless a test says so, lest what should have been closed for a reason is closed by its age.
    """
    options.setdefault("idle_expiry", 3600.0)
    async with serving() as server, Transport(**options) as transport:
        yield transport, server
        assert transport.in_use == 0


def post(server: Server, body: bytes = b"{}", *, read: float | None = None) -> httpx.Request:
    timeout = {"connect": 5.0, "read": read, "write": 5.0, "pool": None}
    return httpx.Request("POST", server.url, content=body, extensions={"timeout": timeout})


async def answer(transport: Transport, request: httpx.Request) -> bytes:
    """The whole body of the response."""
    response = await transport.handle_async_request(request)
    return await response.aread()


def chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """The stream of a response, to be read step by step."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return aiter(response.stream)


async def exchange(transport: Transport, server: Server, reply: bytes = OK) -> Peer:
    """One whole exchange on a new connection, which the server's end is returned of."""
    asked = asyncio.create_task(answer(transport, post(server)))
    peer = await server.peer()
    await peer.request()
    peer.say(reply)
    await asked
    return peer
