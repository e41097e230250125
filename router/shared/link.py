"""A link to Redis: commands out, replies in, whatever stands at the other end.

redis-py knows how to connect, to log in and to speak. What it would do beside that, such as trying again for seconds,
is turned off: whoever asks decides how long an answer is waited for.
"""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

import redis.exceptions
from redis.asyncio.connection import AbstractConnection

Command = tuple[bytes | str | int | float, ...]
"""A command's name and its arguments."""


class Later(tuple[bytes | str | int | float, ...]):
    """See `later`."""

    __slots__ = ()


def later(command: Command) -> Command:
    """The same command, to be done when all those given before it have been, whichever servers these belong to.

    It may then come after others of the same key.
    """
    return Later(command)


FAULTS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
"""What redis-py raises when Redis does not do what it was asked."""


class LinkError(Exception):
    """Redis cannot be asked; the message names the kind of fault, and never an address or a password."""

    @classmethod
    def of(cls, error: Exception) -> "LinkError":
        # redis-py repeats the address, which may hold a password; what Redis itself said holds none.
        return cls(str(error) if isinstance(error, redis.exceptions.ResponseError) else type(error).__name__)


class Link(Protocol):
    """The way to a Redis, or to a cluster of them.

    - `execute` sends commands of one key each, those of one key in their order, and gives a reply each; one that
      Redis refused is an exception in its place, and so is a LinkError where one server of several does not answer.
    - What is marked as `later` is done after all that stands before it.
    - It raises LinkError where no server answers, or where nothing is known of some of the commands.
    - It takes no longer than `timeout`, and nothing is tried twice.
    - After a LinkError the next `execute` connects anew, and finds the servers that have taken over.
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

    def __init__(self, pool: Any) -> None:
        """`pool`: redis-py's, which leaves much of it untyped."""
        self._pool = pool
        self._connection: Any = None

    @property
    def topology(self) -> object:
        return None

    async def execute(self, commands: Sequence[Command], timeout: float) -> list[Any]:
        try:
            async with asyncio.timeout(timeout) as bound:
                if self._connection is None:
                    self._connection = await self._pool.get_connection()
                    await self._greet(self._connection)
                return await _exchange(self._connection, commands, bound)
        except FAULTS as error:
            await self._drop()
            raise LinkError.of(error) from error
        except BaseException:
            await self._drop()
            raise

    async def listeners(self) -> list[AbstractConnection]:
        return [self.new_connection()]

    def new_connection(self) -> AbstractConnection:
        """A connection to the same server, for the caller to connect and to close."""
        connection: AbstractConnection = self._pool.make_connection()
        return connection

    async def aclose(self) -> None:
        await self._drop()
        await self._pool.disconnect()

    async def _greet(self, connection: Any) -> None:
        """What is to be said first on a new connection. Raises one of FAULTS where it does not serve."""

    async def _drop(self) -> None:
        # What has been sent and not answered must not answer the next question.
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*FAULTS):
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)


async def _exchange(connection: Any, commands: Sequence[Command], bound: asyncio.Timeout) -> list[Any]:
    """Sends all, then reads the replies. Raises TimeoutError where there was no time left to begin with."""
    if bound.expired():  # on Python 3.11 the cancellation by which one learns of it may have been lost in connecting
        raise TimeoutError
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies = []
    for _ in commands:
        try:
            replies.append(await connection.read_response(disable_decoding=True, timeout=math.inf))
        except redis.exceptions.ResponseError as error:
            replies.append(error)
    return replies
