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

from router.net.redis.backend import Answer
from router.net.redis.commands import Command, Packed
from router.net.redis.connection import Connection, Place
from router.net.redis.deadline import MORE
from router.net.redis.errors import FAULTS, LinkError
from router.net.redis.handshake import Login


class ServerLink:
    """The link to one server, through one connection."""

    def __init__(self, pool: Any, *, unused_key: str | None = None) -> None:
        """`pool`: redis-py's, which leaves much of it untyped.

        `unused_key`: a key that never exists. If given, a server that takes no writes counts as down.
        """
        self._pool = pool
        self._unused_key = unused_key
        self._demotions = 0
        self._connection: Connection | None = None
        self._login: Login | None = None

    @property
    def topology(self) -> object:
        return self._demotions

    @property
    def counts_receivers(self) -> bool:
        return True

    def execute(self, commands: Sequence[Command | Packed], timeout: float, more: float = MORE) -> Answer:
        """As a Link's; `more`: seconds beyond `timeout` for which the bytes of replies may keep coming."""
        connection = self._connection
        if connection is not None and connection.ready:
            return connection.send(commands, timeout, more)
        return asyncio.get_running_loop().create_task(self._execute_anew(commands, timeout, more))

    async def _execute_anew(self, commands: Sequence[Command | Packed], timeout: float, more: float) -> list[Any]:
        self._drop()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        connection = Connection(refused=self._refused)
        await self.connect(connection, timeout)
        self._connection = connection
        try:
            return await connection.send(commands, until - loop.time(), more)
        except asyncio.CancelledError:
            self._drop()
            raise

    async def servers(self) -> "list[ServerLink]":
        return [self]

    async def aclose(self) -> None:
        self._drop()
        await self._pool.disconnect()
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop

    # -- connecting -------------------------------------------------------------------------------------------------

    async def connect(self, connection: Connection, timeout: float) -> None:
        """Connects a new connection, which is the caller's, to the server. Raises LinkError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                place = await self._place()
            login = self._login = self._login or _login(self._settings())
        except FAULTS as error:
            raise LinkError.of(error) from error
        for reply in await connection.connect(place, login, until - loop.time(), self._questions()):
            try:
                self._check(reply)
            except LinkError:
                connection.abort()
                raise

    def _questions(self) -> Sequence[Command]:
        """What a new connection asks the server about itself."""
        # DEL of a key that does not exist changes nothing. A replica refuses it; a primary executes it even when it is
        # out of memory.
        return [("DEL", self._unused_key)] if self._unused_key is not None else []

    def _check(self, reply: Any) -> None:
        """Raises LinkError where the reply to such a question shows that the server is of no use."""
        # It may refuse for another reason, such as a right that is missing, and is of use all the same.
        if is_read_only(reply):
            raise LinkError("it is a read-only replica")

    async def _place(self) -> Place:
        """Where the server is now. Raises one of FAULTS where that is not known."""
        settings = self._settings()
        return settings.path if hasattr(settings, "path") else (settings.host, settings.port)

    def _settings(self) -> Any:
        """What redis-py knows of a connection, which it holds in one that is never made."""
        return self._pool.make_connection()

    def _refused(self, error: redis.exceptions.ResponseError) -> None:
        if self._connection is not None and is_read_only(error):
            self._connection.retire()
            self._demotions += 1  # whoever listens to the server does so in vain

    def _drop(self) -> None:
        # What has been sent and not answered must not answer the next question.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


def is_read_only(reply: object) -> bool:
    """Whether that is what a replica says to a write."""
    # A script's writes are refused in words of their own by Redis 6, which are not those of a ReadOnlyError.
    return isinstance(reply, redis.exceptions.ReadOnlyError) or (
        isinstance(reply, redis.exceptions.ResponseError) and "READONLY" in str(reply)
    )


def _login(settings: Any) -> Login:
    """What redis-py would say to the server, and the TLS that it would use."""
    tls = settings.ssl_context.get() if hasattr(settings, "ssl_context") else None
    return Login(settings.username, settings.password, settings.db, tls)
