"""A load balancer before routers, in the test's process: requests that follow each other reach different routers."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self

from tests.support.listeners import stop_listening

_READ_SIZE: Final = 65536
_CONNECTION: Final = re.compile(rb"\r\nconnection:[^\r]*(?=\r\n)", re.IGNORECASE)
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class AlternatingFront:
    """Sends a request to the router after the one that got the last request with this method and path.

    Each request has a connection of its own, and so has a WebSocket, which stays at its router.

    - `ports`: those of the routers that are in use.
    - `latest`: that of the router which got the last request.
    - `requests`: how many each of them got, by its port and the path of a POST.
    - `before`: awaited before anything that a client has sent is passed on.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self.requests: Counter[tuple[int, str]] = Counter()
        self.latest = 0
        self.before: Callable[[], Awaitable[None]] | None = None
        self.url = ""
        self._last: dict[bytes, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        await stop_listening(self._listener)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The client or the router may leave at any time.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._pass_on(reader, writer)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        port = self._next(head)
        from_router, to_router = await asyncio.open_connection("127.0.0.1", port)
        if _UPGRADE.search(head) is None:
            head = _CONNECTION.sub(b"", head).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        to_router.write(head)
        request = asyncio.ensure_future(_copy(reader, to_router, self._before))
        response = asyncio.ensure_future(_copy(from_router, writer))
        try:
            await asyncio.wait((request, response), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (request, response):
                each.cancel()
            await asyncio.wait((request, response))
            to_router.transport.abort()

    async def _before(self) -> None:
        if self.before is not None:
            await self.before()

    def _next(self, head: bytes) -> int:
        method, target, _ = head.split(b" ", 2)
        kind, path = method + target.partition(b"?")[0], target.partition(b"?")[0].decode()
        last = self._last.get(kind)
        port = self.ports[(self.ports.index(last) + 1) % len(self.ports) if last in self.ports else 0]
        self._last[kind] = self.latest = port
        if method == b"POST":
            self.requests[port, path] += 1
        return port


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, before: Callable[[], Awaitable[None]] | None = None
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_SIZE):
            if before is not None:
                await before()
            writer.write(data)
            await writer.drain()
