"""The link to one server.

The connection for what is hot is our own; redis-py knows the settings, and makes the connections to listen on.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.exceptions
from redis.asyncio.connection import AbstractConnection

from router.shared.connection import Connection, Login, Place, connect
from router.shared.link import FAULTS, Answer, Command, LinkError, Packed


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

    def execute(self, commands: Sequence[Command | Packed], timeout: float) -> Answer:
        connection = self._connection
        if connection is not None and connection.ready:
            return connection.send(commands, timeout)
        return asyncio.get_running_loop().create_task(self._execute_anew(commands, timeout))

    async def _execute_anew(self, commands: Sequence[Command | Packed], timeout: float) -> list[Any]:
        self._drop()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        connection = self._connection = await self._connect(timeout)
        try:
            return await connection.send(commands, until - loop.time())
        except asyncio.CancelledError:
            self._drop()
            raise

    async def listeners(self) -> list[AbstractConnection]:
        return [self.new_connection()]

    def new_connection(self) -> AbstractConnection:
        """A connection to the same server, for the caller to connect and to close."""
        connection: AbstractConnection = self._pool.make_connection()
        return connection

    async def aclose(self) -> None:
        self._drop()
        await self._pool.disconnect()
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop

    # -- connecting -------------------------------------------------------------------------------------------------

    async def _connect(self, timeout: float) -> Connection:
        """A connection that serves. Raises LinkError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                place = await self._place()
            login = self._login = self._login or _login(self.new_connection())
        except FAULTS as error:
            raise LinkError.of(error) from error
        return await connect(place, login, until - loop.time(), self._refused)

    async def _place(self) -> Place:
        """Where the server is now. Raises one of FAULTS where that is not known."""
        settings: Any = self.new_connection()
        return settings.path if hasattr(settings, "path") else (settings.host, settings.port)

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
