"""A link to Redis: commands out, replies in, whatever stands at the other end."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.connection import RedisConnection


class ReplyFuture(Protocol):
    """The replies to come; a future is one. Who waits for them is told no later than a future tells him.

    Whoever is told by a callback may be told at once, in the midst of what brings the replies. To stop waiting is to
    give up what was asked; it may be done all the same.
    """

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...

    def result(self) -> list[Any]:
        """The replies, once they are there. Raises LinkError."""

    def __await__(self) -> Generator[Any, None, list[Any]]: ...


class Server(Protocol):
    """One server that holds keys."""

    async def connect(self, connection: RedisConnection, timeout: float) -> None:
        """Connects a new connection, which is the caller's, to the server. Raises LinkError."""


class RedisBackend(Protocol):
    """The way to a Redis, or to a cluster of them.

    - `execute` sends commands of one key each, those of one key in their order, and gives a reply each; one that
      Redis refused is an exception in its place, and so is a LinkError where one server of several does not answer.
    - What is marked as `later` is done after all that stands before it.
    - It fails with LinkError where no server answers, or where nothing is known of some of the commands.
    - A server that is silent for `timeout`, in seconds, has failed. All of it takes at most MORE seconds longer than
      that, and only while bytes of replies keep coming. Nothing is tried twice.
    - After a LinkError the next `execute` connects anew, and finds the servers that have taken over.
    - Only one `execute` is under way at a time.
    """

    @property
    def topology(self) -> object:
        """Compares equal as long as the same servers hold the keys."""

    @property
    def counts_receivers(self) -> bool:
        """Whether the reply to PUBLISH counts all who listen. A server of a cluster counts its own clients alone."""

    def execute(self, commands: Sequence[Command | EncodedCommand], timeout: float) -> ReplyFuture: ...

    async def servers(self) -> Sequence[Server]:
        """Every server that holds keys, for whoever wants connections of his own to be told of changes.

        Raises LinkError where it is not known which servers there are.
        """

    async def aclose(self) -> None: ...
