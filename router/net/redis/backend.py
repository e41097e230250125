"""What the pipeline needs of Redis, whether that is a single server, a Sentinel service or a cluster."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.connection import RedisConnection


class ReplyFuture(Protocol):
    """Pending replies; an asyncio future is one. A waiter is notified no later than by a future.

    A callback may run synchronously, while the replies are being read. Cancelling the wait abandons the commands;
    Redis may execute them all the same.
    """

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...

    def result(self) -> list[Any]:
        """The replies, after completion. Raises RedisBackendError."""

    def __await__(self) -> Generator[Any, None, list[Any]]: ...


class Server(Protocol):
    """One server that holds keys."""

    async def connect(self, connection: RedisConnection, timeout: float) -> None:
        """Connects a new connection, which the caller owns, to the server. Raises RedisBackendError."""


class RedisBackend(Protocol):
    """The connection to one Redis server, or to a cluster.

    - `execute` sends commands of one key each. Commands of the same key keep their order, and each command has a reply.
      The reply is an exception if Redis refused the command, and a RedisBackendError if one server of several does not
      answer.
    - A command marked by `after_previous` is executed after all commands before it.
    - It fails with RedisBackendError if no server answers, or if the outcome of some commands is unknown.
    - A server that is silent for `timeout` seconds has failed. The batch takes at most MAX_EXTRA_TIME seconds longer
      than that, and only while bytes of replies keep arriving. Nothing is retried.
    - After a RedisBackendError the next `execute` reconnects, and reaches the servers that have taken over.
    - The caller makes only one `execute` at a time.
    """

    @property
    def topology(self) -> object:
        """A value that compares equal as long as the same servers hold the keys."""

    @property
    def counts_receivers(self) -> bool:
        """Whether the reply to PUBLISH counts all subscribers. A server of a cluster counts only its own clients."""

    def execute(self, commands: Sequence[Command | EncodedCommand], timeout: float) -> ReplyFuture: ...

    async def servers(self) -> Sequence[Server]:
        """Every server that holds keys, for the listener, which opens a connection of its own to each.

        Raises RedisBackendError if the servers are not known.
        """

    async def aclose(self) -> None: ...
