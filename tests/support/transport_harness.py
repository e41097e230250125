"""Shared by the tests of the transport: both event loops, and a server that sends the bytes of a test."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop

from router.net.client.errors import EngineError
from router.net.client.response import EngineResponse
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from tests.support.listeners import stop_listening

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test on asyncio's event loop and on uvloop; a hang fails, and so does an error that is only logged."""

    @pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        loop_errors: list[dict[str, Any]] = []

        async def bounded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
            # A hang fails the test rather than the test run.
            async with asyncio.timeout(20):
                await test()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(bounded())
        assert loop_errors == []

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """The next request; its body must have a Content-Length, if there is one."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return head + await self.reader.readexactly(int(line.split(b":")[1]))
        return head

    def received_segments(self) -> int:
        """The number of TCP segments received from the client: `tcpi_data_segs_in` of Linux' struct tcp_info."""
        info = self.writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 156)
        (count,) = struct.unpack_from("I", info, 152)
        return int(count)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def closed_by_client(self) -> bool:
        """Waits until the client closes; returns whether no more data came before."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Closes with a RST, as a machine that crashes does."""
        # SO_LINGER with a timeout of 0: close() sends a RST instead of a FIN.
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class PeerServer:
    """Accepts connections, and passes each one to the test."""

    def __init__(self) -> None:
        self.accepted = 0
        self.base = ""
        self.writers: list[asyncio.StreamWriter] = []
        self.stop_listening: Callable[[], None] = lambda: None
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()

    @property
    def url(self) -> str:
        return self.base + "/v1/chat/completions"

    async def peer(self) -> Peer:
        return await self._peers.get()

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        await self._peers.put(Peer(reader, writer))


@asynccontextmanager
async def serve_peers(context: ssl.SSLContext | None = None) -> AsyncIterator[PeerServer]:
    server = PeerServer()
    listener = await asyncio.start_server(server.on_connection, "127.0.0.1", 0, ssl=context, limit=2**20)
    server.stop_listening = listener.close
    port = listener.sockets[0].getsockname()[1]
    server.base = f"{'https' if context else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await stop_listening(listener)
        for writer in server.writers:
            writer.transport.abort()
        await listener.wait_closed()


@asynccontextmanager
async def transport_and_server(**options: Any) -> AsyncIterator[tuple[HTTPTransport, PeerServer]]:
    """A transport and a server; at the end, no connection may be in use.

    Idle connections do not expire by default, so that a connection that closes does so for the reason under test.
    """
    options.setdefault("idle_expiry", 3600.0)
    async with serve_peers() as server, HTTPTransport(**options) as transport:
        yield transport, server
        assert transport.in_use == 0


LONG = 3600.0
"""A timeout in seconds that no test reaches."""


async def send_request(
    transport: HTTPTransport,
    url: str,
    body: bytes = b"{}",
    *,
    connect: float = LONG,
    head_timeout: float = LONG,
    ca_file: str = "",
) -> EngineResponse:
    """A response whose head has been received."""
    target = RequestTarget(url, "", ca_file=ca_file)
    message = b"%b%d\r\n\r\n%b" % (target.post_prefix, len(body), body)
    return await transport.send(
        target.origin, message, connect_timeout=connect, head_timeout=head_timeout, total_timeout=LONG
    )


async def fetch_body(transport: HTTPTransport, server: PeerServer, body: bytes = b"{}", *, ca_file: str = "") -> bytes:
    return await (await send_request(transport, server.url, body, ca_file=ca_file)).read(1 << 30)


async def start_request(
    transport: HTTPTransport, server: PeerServer, **options: Any
) -> tuple[asyncio.Task[EngineResponse], Peer]:
    """Starts a request on a new connection; returns it and the server's end, once that has read the request."""
    task = asyncio.create_task(send_request(transport, server.url, **options))
    peer = await server.peer()
    await peer.request()
    return task, peer


async def start_fetch(transport: HTTPTransport, server: PeerServer) -> tuple[asyncio.Task[bytes], Peer]:
    """As `start_request`; the result is the body of the response."""
    task = asyncio.create_task(fetch_body(transport, server))
    peer = await server.peer()
    await peer.request()
    return task, peer


class BodyChunks:
    """The body of a response, chunk by chunk; `chunk_timeout` is in seconds."""

    def __init__(self, response: EngineResponse, chunk_timeout: float | None = None) -> None:
        self._response = response
        self._chunk_timeout = chunk_timeout

    def __aiter__(self) -> "BodyChunks":
        return self

    async def __anext__(self) -> bytes:
        chunks: list[bytes] = []

        def on_chunk(chunk: bytes) -> bool:
            chunks.append(chunk)
            return True

        if not await self._response.stream_to(on_chunk, self._chunk_timeout):
            raise StopAsyncIteration
        (chunk,) = chunks
        return chunk


@contextmanager
def raises_engine_error(reason: str, *, cause: str = "") -> Iterator[None]:
    """Expects an EngineError with this reason, whose cause contains this text."""
    with pytest.raises(EngineError) as caught:
        yield
    assert caught.value.reason == reason
    assert cause in str(caught.value.__cause__)


async def complete_exchange(transport: HTTPTransport, server: PeerServer, reply: bytes = OK) -> Peer:
    """Runs one complete exchange on a new connection; returns the server's end of the connection."""
    fetch, peer = await start_fetch(transport, server)
    peer.send(reply)
    await fetch
    return peer
