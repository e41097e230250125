"""Redis, however people run it: from the address in the configuration to connections.

redis-py knows how to connect, log in, follow a Sentinel and find a cluster's nodes. What it would do beside that, such
as trying again for seconds, is turned off: whoever asks decides how long an answer is waited for.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import redis.asyncio as aioredis
import redis.exceptions
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Command = tuple[bytes | str | int | float, ...]
"""A command's name and its arguments; the key, if it has one, stands where redis-py looks for it."""

FAULTS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
"""What redis-py raises when Redis does not do what it was asked."""

CLIENT_NAME: Final = "roundhouse"


class LinkError(Exception):
    """Redis cannot be asked; the message names the kind of fault, and never an address or a password."""

    @classmethod
    def of(cls, error: Exception) -> "LinkError":
        # redis-py repeats the address, which may hold a password; what Redis itself said holds none.
        return cls(str(error) if isinstance(error, redis.exceptions.ResponseError) else type(error).__name__)


class Link(Protocol):
    """The way to a Redis, or to a cluster of them.

    - `execute` sends commands of one key each, those of one key in their order, and gives a reply each; one that
      Redis refused is an exception in its place. Raises LinkError where nothing is known of some of them.
    - After a LinkError the next `execute` connects anew.
    - Only one `execute` is under way at a time.
    """

    @property
    def topology(self) -> object:
        """Compares equal as long as the same servers hold the keys."""

    async def execute(self, commands: Sequence[Command], timeout: float) -> list[Any]: ...

    async def listeners(self) -> list[AbstractConnection]:
        """Connections of their own to every server that holds keys, for whoever wants to be told of changes.

        They speak RESP3 and are not connected yet. Raises LinkError where it is not known which servers there are.
        """

    async def aclose(self) -> None: ...


class ServerLink:
    """The link to one server, through one connection."""

    def __init__(self, client: "aioredis.Redis") -> None:
        self._pool: Any = client.connection_pool  # redis-py leaves much of it untyped
        self._connection: Any = None

    @property
    def topology(self) -> object:
        return None

    async def execute(self, commands: Sequence[Command], timeout: float) -> list[Any]:
        try:
            async with asyncio.timeout(timeout):
                if self._connection is None:
                    self._connection = await self._pool.get_connection()
                return await _exchange(self._connection, commands)
        except FAULTS as error:
            await self._drop()
            raise LinkError.of(error) from error
        except BaseException:
            await self._drop()
            raise

    async def listeners(self) -> list[AbstractConnection]:
        return [self._pool.make_connection()]

    async def aclose(self) -> None:
        await self._drop()
        await self._pool.disconnect()

    async def _drop(self) -> None:
        # What has been sent and not answered must not answer the next question.
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*FAULTS):
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)


async def _exchange(connection: Any, commands: Iterable[Command]) -> list[Any]:
    """Sends all, then reads the replies; the connection's owner minds the time."""
    commands = list(commands)
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies = []
    for _ in commands:
        try:
            replies.append(await connection.read_response(disable_decoding=True, timeout=math.inf))
        except redis.exceptions.ResponseError as error:
            replies.append(error)
    return replies


def open_client(url: str, *, timeout: float) -> "aioredis.Redis":
    """A redis-py client, for what is not hot. `timeout` in seconds, for connecting and for each answer."""
    return aioredis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        # redis-py tries again for seconds unless it is told not to.
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        client_name=CLIENT_NAME,
        protocol=3,
    )


def open_link(url: str, *, timeout: float) -> Link:
    """The link to the Redis at an address. `timeout` in seconds, for connecting."""
    return ServerLink(open_client(url, timeout=timeout))
