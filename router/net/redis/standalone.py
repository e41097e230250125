"""The backend for one server.

Theory of operation. Behind a host name or a load
balancer, another server may take over. The former primary is then its replica, and Redis does not notify the clients of
that. So each new connection first checks whether the server accepts writes. When the server refuses one later, the
connection is retired, and the next one reaches whichever server the name resolves to then. A server that accepts no
writes counts as down: purges would fail there, and purges made elsewhere may not reach it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import redis.exceptions

from router.net.redis.backend import ReplyFuture
from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.connection import RedisConnection, ServerAddress
from router.net.redis.deadline import MAX_EXTRA_TIME
from router.net.redis.errors import REDIS_ERRORS, ReadOnlyReplicaError, RedisBackendError
from router.net.redis.handshake import Handshake


class StandaloneBackend:
    """The backend for one server, through one connection."""

    def __init__(
        self, address: ServerAddress, handshake: Callable[[], Handshake], *, unused_key: str | None = None
    ) -> None:
        """`handshake` raises one of REDIS_ERRORS if a certificate cannot be read.

        `unused_key`: a key that never exists. If given, a server that accepts no writes counts as down.
        """
        self._address = address
        self._handshake = handshake
        self._unused_key = unused_key
        self._demotions = 0  # how often the server refused a write; a change makes the listener connect anew
        self._connection: RedisConnection | None = None

    @property
    def topology(self) -> object:
        return self._demotions

    @property
    def counts_receivers(self) -> bool:
        return True

    def execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float = MAX_EXTRA_TIME
    ) -> ReplyFuture:
        """See RedisBackend. `extra_time`: seconds beyond `timeout` for which bytes of replies may keep arriving."""
        connection = self._connection
        if connection is not None and connection.ready:
            return connection.execute(commands, timeout, extra_time)
        return asyncio.get_running_loop().create_task(self._reconnect_and_execute(commands, timeout, extra_time))

    async def _reconnect_and_execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float
    ) -> list[Any]:
        self._drop_connection()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        connection = RedisConnection(on_error_reply=self._on_error_reply)
        await self.connect(connection, timeout)
        self._connection = connection
        try:
            return await connection.execute(commands, deadline - loop.time(), extra_time)
        except asyncio.CancelledError:  # nobody reads the replies any more; the next batch opens a new connection
            self._drop_connection()
            raise

    async def servers(self) -> "list[StandaloneBackend]":
        return [self]

    async def aclose(self) -> None:
        self._drop_connection()
        await asyncio.sleep(0)  # the transport closes its socket in the next loop iteration

    # -- connecting -------------------------------------------------------------------------------------------------

    async def connect(self, connection: RedisConnection, timeout: float) -> None:
        """Connects a new connection, which the caller owns, to the server. Raises RedisBackendError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                address = await self._resolve_address()
            handshake = self._handshake()
        except REDIS_ERRORS as error:
            raise RedisBackendError.from_exception(error) from error
        for reply in await connection.connect(address, handshake, deadline - loop.time(), self._check_commands()):
            try:
                self._verify_check_reply(reply)
            except RedisBackendError:
                connection.abort()
                raise

    def _check_commands(self) -> Sequence[Command]:
        """What a new connection sends after the handshake, to check whether the server is usable."""
        # DEL of a key that does not exist changes nothing. A replica refuses it; a primary executes it even when it is
        # out of memory.
        return [("DEL", self._unused_key)] if self._unused_key is not None else []

    def _verify_check_reply(self, reply: Any) -> None:
        """Raises RedisBackendError if the reply to such a command shows that the server cannot be used."""
        # A server that refuses for another reason, such as a missing permission, is still usable.
        if is_read_only_error(reply):
            raise ReadOnlyReplicaError

    async def _resolve_address(self) -> ServerAddress:
        """The server's current address. Raises one of REDIS_ERRORS if it is not known."""
        return self._address

    def _on_error_reply(self, error: redis.exceptions.ResponseError) -> None:
        if self._connection is not None and is_read_only_error(error):
            self._connection.retire()
            self._demotions += 1  # the listener's connection leads to a replica now, so it must connect anew

    def _drop_connection(self) -> None:
        # Aborted, not reused: late replies must not be taken for those of the next batch.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


def is_read_only_error(reply: object) -> bool:
    """Whether the reply is a replica's refusal of a write."""
    # Redis 6 refuses a script's writes with another message, which redis-py does not map to a ReadOnlyError.
    return isinstance(reply, redis.exceptions.ReadOnlyError) or (
        isinstance(reply, redis.exceptions.ResponseError) and "READONLY" in str(reply)
    )
