"""The link to one server.

Theory of operation. The connections are our own; redis-py knows the settings. Behind a name or a load balancer, another
server may take over, and the one before then is its replica, which Redis does not tell its clients. So each connection
first asks whether the server takes writes; and when it refuses one, its connection is retired, and the next one finds
whichever server stands behind the name by then. One that takes no writes counts as down: purges would fail there, and
those done elsewhere may not reach it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.exceptions

from router.net.redis.backend import ReplyFuture
from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.connection import RedisConnection, ServerAddress
from router.net.redis.deadline import MAX_EXTRA_TIME
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError
from router.net.redis.handshake import Handshake


class StandaloneBackend:
    """The link to one server, through one connection."""

    def __init__(self, pool: Any, *, unused_key: str | None = None) -> None:
        """`pool`: redis-py's, which leaves much of it untyped.

        `unused_key`: a key that never exists. If given, a server that takes no writes counts as down.
        """
        self._pool = pool
        self._unused_key = unused_key
        self._demotions = 0
        self._connection: RedisConnection | None = None
        self._handshake: Handshake | None = None

    @property
    def topology(self) -> object:
        return self._demotions

    @property
    def counts_receivers(self) -> bool:
        return True

    def execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float = MAX_EXTRA_TIME
    ) -> ReplyFuture:
        """As a Link's; `more`: seconds beyond `timeout` for which the bytes of replies may keep coming."""
        connection = self._connection
        if connection is not None and connection.ready:
            return connection.execute(commands, timeout, extra_time)
        return asyncio.get_running_loop().create_task(self._reconnect_and_execute(commands, timeout, extra_time))

    async def _reconnect_and_execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float
    ) -> list[Any]:
        self._drop_connection()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        connection = RedisConnection(on_error_reply=self._on_error_reply)
        await self.connect(connection, timeout)
        self._connection = connection
        try:
            return await connection.execute(commands, until - loop.time(), extra_time)
        except asyncio.CancelledError:
            self._drop_connection()
            raise

    async def servers(self) -> "list[StandaloneBackend]":
        return [self]

    async def aclose(self) -> None:
        self._drop_connection()
        await self._pool.disconnect()
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop

    # -- connecting -------------------------------------------------------------------------------------------------

    async def connect(self, connection: RedisConnection, timeout: float) -> None:
        """Connects a new connection, which is the caller's, to the server. Raises LinkError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                place = await self._resolve_address()
            login = self._handshake = self._handshake or _build_handshake(self._connection_settings())
        except REDIS_ERRORS as error:
            raise RedisBackendError.from_exception(error) from error
        for reply in await connection.connect(place, login, until - loop.time(), self._check_commands()):
            try:
                self._verify_check_reply(reply)
            except RedisBackendError:
                connection.abort()
                raise

    def _check_commands(self) -> Sequence[Command]:
        """What a new connection asks the server about itself."""
        # DEL of a key that does not exist changes nothing. A replica refuses it; a primary executes it even when it is
        # out of memory.
        return [("DEL", self._unused_key)] if self._unused_key is not None else []

    def _verify_check_reply(self, reply: Any) -> None:
        """Raises LinkError where the reply to such a question shows that the server is of no use."""
        # It may refuse for another reason, such as a right that is missing, and is of use all the same.
        if is_read_only_error(reply):
            raise RedisBackendError("it is a read-only replica")

    async def _resolve_address(self) -> ServerAddress:
        """Where the server is now. Raises one of FAULTS where that is not known."""
        settings = self._connection_settings()
        return settings.path if hasattr(settings, "path") else (settings.host, settings.port)

    def _connection_settings(self) -> Any:
        """What redis-py knows of a connection, which it holds in one that is never made."""
        return self._pool.make_connection()

    def _on_error_reply(self, error: redis.exceptions.ResponseError) -> None:
        if self._connection is not None and is_read_only_error(error):
            self._connection.retire()
            self._demotions += 1  # whoever listens to the server does so in vain

    def _drop_connection(self) -> None:
        # What has been sent and not answered must not answer the next question.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


def is_read_only_error(reply: object) -> bool:
    """Whether that is what a replica says to a write."""
    # A script's writes are refused in words of their own by Redis 6, which are not those of a ReadOnlyError.
    return isinstance(reply, redis.exceptions.ReadOnlyError) or (
        isinstance(reply, redis.exceptions.ResponseError) and "READONLY" in str(reply)
    )


def _build_handshake(settings: Any) -> Handshake:
    """What redis-py would say to the server, and the TLS that it would use."""
    tls = settings.ssl_context.get() if hasattr(settings, "ssl_context") else None
    return Handshake(settings.username, settings.password, settings.db, tls)
