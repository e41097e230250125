"""The link to one server.

The connections are our own; redis-py knows the settings.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.exceptions

from router.shared.connection import Connection, Place
from router.shared.link import FAULTS, MORE, Answer, Command, LinkError, Packed
from router.shared.login import Login


class ServerLink:
    """The link to one server, through one connection."""

    def __init__(self, pool: Any) -> None:
        """`pool`: redis-py's, which leaves much of it untyped."""
        self._pool = pool
        self._connection: Connection | None = None
        self._login: Login | None = None

    @property
    def topology(self) -> object:
        return None

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
        await connection.connect(place, login, until - loop.time())

    async def _place(self) -> Place:
        """Where the server is now. Raises one of FAULTS where that is not known."""
        settings = self._settings()
        return settings.path if hasattr(settings, "path") else (settings.host, settings.port)

    def _settings(self) -> Any:
        """What redis-py knows of a connection, which it holds in one that is never made."""
        return self._pool.make_connection()

    def _refused(self, error: redis.exceptions.ResponseError) -> None:
        """A command was refused."""

    def _drop(self) -> None:
        # What has been sent and not answered must not answer the next question.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()


def _login(settings: Any) -> Login:
    """What redis-py would say to the server, and the TLS that it would use."""
    tls = settings.ssl_context.get() if hasattr(settings, "ssl_context") else None
    return Login(settings.username, settings.password, settings.db, tls)
