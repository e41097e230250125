"""The cost of an exchange with an engine: our transport and httpx's own, at 1, 64 and 256 concurrent exchanges.

    .venv/bin/python -m benchmarks.transport [--events 66] [--only ours]

The server is a bare asyncio protocol in its own process. CPU is the time of this process, user and system; it includes
everything that a client does: request, transport, event loop and the kernel's share. Wall is the duration of one
exchange for its client. The server and the creation of the client are not included; the opening of connections is, once
each, since it is part of a burst. A run takes less than a minute, most of it in httpx's own transport.

- json: a POST with 1.8 KB, answered with 1.2 KB
- stream: the same POST, answered with 66 SSE events, each in its own write; the server spaces them so that about 5000
  per second arrive over all streams: then the kernel does not join them and the client does not fall behind
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import cast

import httpx
import uvloop

from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport

REQUEST = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 1740 + b'"}]}'
ANSWER = b'{"choices": [{"message": {"content": "' + b"y" * 1150 + b'"}}]}'
EVENT = (
    b'data: {"id": "chatcmpl-0", "object": "chat.completion.chunk", "choices": [{"delta": {"content": "word"}}]}\n\n'
)
EVENTS_A_SECOND = 5000
CONCURRENCY = (1, 64, 256)


class Engine(asyncio.Protocol):
    """Answers /json at once and /stream/{events}/{microseconds between them} with as many writes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or len(self._received) < end + 4 + len(REQUEST):
            return
        path = self._received.split(b" ", 2)[1].decode()
        self._received.clear()
        if path == "/json":
            self._write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
            return
        _, _, events, spacing = path.split("/")
        self._write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._event(int(events), int(spacing) / 1e6)

    def _event(self, left: int, spacing: float) -> None:
        if left == 0:
            self._write(b"0\r\n\r\n")
        else:
            self._write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_later(spacing, self._event, left - 1, spacing)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def serve(ready: Pipe) -> None:
    """The server's process; it ends with its parent."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=1024)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


Exchange = Callable[[str], Awaitable[int]]


async def drain(chunks: AsyncIterable[bytes]) -> int:
    return sum([len(chunk) async for chunk in chunks])


def with_httpx(client: httpx.AsyncClient) -> Exchange:
    async def exchange(url: str) -> int:
        async with client.stream("POST", url, content=REQUEST) as response:
            return await drain(response.aiter_raw())

    return exchange


def with_transport(transport: HTTPTransport) -> Exchange:
    async def exchange(url: str) -> int:
        page, received = RequestTarget(url, ""), 0

        def count(piece: bytes) -> bool:
            nonlocal received
            received += len(piece)
            return False

        message = b"%b%d\r\n\r\n%b" % (page.post_prefix, len(REQUEST), REQUEST)
        with await transport.send(
            page.origin, message, connect_timeout=5.0, head_timeout=15.0, total_timeout=60.0
        ) as response:
            await response.stream_to(count, 15.0)
        return received

    return exchange


@dataclass(frozen=True)
class Figure:
    """Milliseconds per exchange: CPU time, and duration for its client."""

    cpu: float
    wall: float


async def measure(exchange: Exchange, url: str, size: int, concurrency: int, rounds: int) -> Figure:
    async def one() -> float:
        started = time.perf_counter()
        received = await exchange(url)
        if received != size:
            raise RuntimeError(f"received {received} bytes of {size}")
        return time.perf_counter() - started

    walls: list[float] = []
    started = time.process_time()
    for _ in range(rounds):
        walls += await asyncio.gather(*(one() for _ in range(concurrency)))
    cpu = time.process_time() - started
    return Figure(cpu * 1000 / len(walls), sum(walls) * 1000 / len(walls))


async def compare(base: str, events: int, only: str) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    cases: list[tuple[str, Callable[[], tuple[Exchange, Callable[[], Awaitable[None]]]]]] = []

    def default() -> tuple[Exchange, Callable[[], Awaitable[None]]]:
        client = httpx.AsyncClient(timeout=60.0, limits=limits, trust_env=False)
        return with_httpx(client), client.aclose

    def ours() -> tuple[Exchange, Callable[[], Awaitable[None]]]:
        transport = HTTPTransport()
        return with_transport(transport), transport.aclose

    cases = [("httpx", default), ("ours", ours)]
    print(f"{'':16}{'concurrent':>12}{'json CPU':>12}{'stream CPU':>12}{'json wall':>12}{'stream wall':>12}   ms")
    for concurrency in CONCURRENCY:
        spacing = max(1000, concurrency * 1_000_000 // EVENTS_A_SECOND)
        stream = f"{base}/stream/{events}/{spacing}"
        for name, start in cases:
            if only not in ("", name):
                continue
            exchange, close = start()
            json = await measure(exchange, f"{base}/json", len(ANSWER), concurrency, max(2, 512 // concurrency))
            sse = await measure(exchange, stream, events * len(EVENT), concurrency, max(1, 32 // concurrency))
            await close()
            figures = (json.cpu, sse.cpu, json.wall, sse.wall)
            print(f"{name:16}{concurrency:12}" + "".join(f"{figure:12.3f}" for figure in figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=66, help="events a stream")
    parser.add_argument("--only", default="", help="one of: httpx, ours")
    options = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        uvloop.run(compare(f"http://127.0.0.1:{ours.recv()}", options.events, options.only))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
