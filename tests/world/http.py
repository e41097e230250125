"""HTTP between simulated processes: uvicorn's protocols as servers, httpx as the client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpcore
import httpx
import uvicorn
from uvicorn.server import ServerState

from tests.support.http_limits import LIMITS
from tests.support.waiting import TEST_TIMEOUT

PORT: Final = 8000


class HttpServer:
    """Serves an ASGI application at http://NAME:PORT from the process that creates it."""

    def __init__(
        self, name: str, application: Any, protocol: Callable[..., asyncio.Protocol], port: int = PORT
    ) -> None:
        options: dict[str, Any] = {"http": protocol, "ws": "none", "lifespan": "off", "log_config": None}
        config = uvicorn.Config(application, access_log=False, server_header=False, **options)
        config.load()
        state = ServerState()
        self._address = (name, port)
        self._state = state
        self._listener: Any = None
        # uvicorn passes its arguments by these names.
        self._accept = lambda: protocol(config=config, server_state=state, app_state={})

    async def listen(self) -> None:
        self._listener = await asyncio.get_running_loop().create_server(self._accept, *self._address)

    async def set_writable(self, is_writable: bool) -> None:
        """Whether the buffers of all connections have room, of which the network of a world knows nothing."""
        for connection in list(self._state.connections):
            (connection.resume_writing if is_writable else connection.pause_writing)()

    async def close(self) -> None:
        """Stops listening, closes all connections, and waits for their requests."""
        self._listener.close()
        for connection in list(self._state.connections):
            connection.transport.close()
        while tasks := [task for task in self._state.tasks if task is not asyncio.current_task()]:
            await asyncio.wait(tasks)


def open_client(url: str, timeout: float = TEST_TIMEOUT) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, transport=_SimulatedTransport(), timeout=timeout, trust_env=False)


class _SimulatedTransport(httpx.AsyncHTTPTransport):
    """httpx with its usual pool, over asyncio's streams in place of anyio's."""

    def __init__(self) -> None:
        # Not that of the base class: it loads certificates, which takes longer than a scenario.
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=_Network(), max_connections=None, keepalive_expiry=LIMITS.keepalive_expiry
        )


class _Network(httpcore.AsyncNetworkBackend):
    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        async with _translated(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
            return _Stream(*await asyncio.open_connection(host, port))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        async with _translated(timeout, httpcore.ReadTimeout, httpcore.ReadError):
            return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        async with _translated(timeout, httpcore.WriteTimeout, httpcore.WriteError):
            self._writer.write(buffer)

    async def aclose(self) -> None:
        self._writer.close()

    def get_extra_info(self, info: str) -> Any:
        # Asked of an idle connection: whether the server has closed it.
        return self._reader.at_eof() if info == "is_readable" else None


@asynccontextmanager
async def _translated(
    timeout: float | None, timed_out: type[Exception], failed: type[Exception]
) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as error:
        raise timed_out(str(error)) from error
    except OSError as error:
        raise failed(str(error)) from error
