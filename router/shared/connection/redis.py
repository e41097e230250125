"""Opens net/redis with the router's own keys, which its checks need: is the server up, does it accept writes?"""

import asyncio
import re
from typing import Any, NamedTuple

from router.core.cache.redis_keys import ABSENT_KEY, PURGE_LOG_KEY
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import RedisPyClient
from router.net.redis.connect import open_backend as connect_backend
from router.net.redis.connect import open_client as connect_client
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisPipeline


def open_backend(url: str, *, timeout: float) -> RedisBackend:
    """The backend for a URL. `timeout` in seconds, for connecting. Raises RedisUrlError."""
    return connect_backend(url, timeout=timeout, unused_key=ABSENT_KEY)


def open_pipeline(
    backend: RedisBackend, *, timeout: float, retry: float, clock: RedisClock | None = None
) -> RedisPipeline:
    """The pipeline over a backend. `timeout` and `retry` in seconds; see RedisPipeline."""
    return RedisPipeline(backend, timeout=timeout, retry_interval=retry, probe_key=PURGE_LOG_KEY, clock=clock)


class ServerReport(NamedTuple):
    """Whether Redis answers: `problem` says in words why it does not. `version`: None if it is unknown."""

    problem: str | None = None
    version: str | None = None
    primaries: int = 1


async def ask_server(url: str, *, timeout: float) -> ServerReport:
    """`timeout` in seconds, for each reply. Raises RedisUrlError."""
    backend = open_backend(url, timeout=timeout)
    try:
        (info,) = await backend.execute([("INFO", "server")], timeout)
        primaries = len(await backend.servers())
    except RedisBackendError as error:
        return ServerReport(f"does not answer ({error})")
    finally:
        await backend.aclose()
    if isinstance(info, Exception):
        return ServerReport(f"returns an error ({info})")
    version = re.search(rb"redis_version:(\S+)", info) if isinstance(info, bytes) else None
    return ServerReport(None, version[1].decode("ascii", "replace") if version else None, primaries)


class CommandClient:
    """A redis-py client that a cancellation never reaches.

    redis-py, and on Python 3.11 asyncio.wait_for below it, can swallow a cancellation, so that the cancelled task goes
    on. So a cancelled command ends in the background, after the client's timeout at the latest.
    """

    def __init__(self, client: RedisPyClient) -> None:
        self._client = client

    async def execute_command(self, *command: Any) -> Any:
        reply = asyncio.ensure_future(self._client.execute_command(*command))
        reply.add_done_callback(_retrieve_exception)
        return await asyncio.shield(reply)

    async def aclose(self) -> None:
        await self._client.aclose()


def _retrieve_exception(reply: "asyncio.Future[Any]") -> None:
    """Else asyncio would log, with a traceback, the error of a command that nobody waits for any more."""
    if not reply.cancelled():
        reply.exception()


def open_client(url: str, *, timeout: float) -> CommandClient:
    """A client for code outside of the path of a request. `timeout` in seconds, to connect and per reply.

    Raises RedisUrlError.
    """
    return CommandClient(connect_client(url, timeout=timeout))
