"""A link to Redis: commands out, replies in, whatever stands at the other end."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import hiredis
import redis.exceptions

from router.shared.local_errors import local_cause

if TYPE_CHECKING:  # which imports this
    from router.shared.server_link import ServerLink

Word = bytes | str | int | float
Command = tuple[Word, ...]
"""A command's name and its arguments."""


Packed = bytes
"""A command as it goes over the wire: for what is sent often and is nearly always the same; see `form`."""


class Later(Command):
    """See `later`."""

    __slots__ = ()


class PackedLater(bytes):
    """See `later`."""

    __slots__ = ()


def later(command: Command | Packed) -> Command | Packed:
    """The same command, to be done when all those given before it have been, whichever servers these belong to.

    It may then come after others of the same key.
    """
    return PackedLater(command) if isinstance(command, bytes) else Later(command)


pack: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]
"""How a command goes over the wire."""


def form(*words: Word | None) -> bytes:
    """A command over the wire, to be filled with %: with the length, and then the bytes, of each word that is None.

    Filling it takes a third of what packing takes.
    """
    return b"*%d\r\n" % len(words) + part(*words)


def part(*words: Word | None) -> bytes:
    """Some words of such a command; what begins with `*%d` and goes on with parts is filled with their number first."""
    return b"".join([b"$%d\r\n%b\r\n" if word is None else _word(word).replace(b"%", b"%%") for word in words])


def _word(word: Word) -> bytes:
    return pack((word,)).partition(b"\r\n")[2]


FAULTS: Final = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
"""What is raised when Redis does not do what it was asked, by redis-py and by what lies below it."""


MORE: Final = 1.0
"""Seconds that a batch may take beyond its timeout while the bytes of its replies keep coming.

A timeout says how long Redis may be silent, not how large its replies may be: at `cache.timeout`'s 50 ms and 45 MB/s,
three entries of 0.9 MiB would be too many. On the other hand, whoever waits behind the batch waits for all of it. One
second lets 45 MiB through at that rate, 10 MiB at 10 MB/s; what is slower than that counts as down. It is paid once:
after that Redis is not waited for until it answers again. To generate an answer of such a size anew takes minutes.
"""


class LinkError(Exception):
    """Redis cannot be asked; the message names the kind of fault, and never an address or a password."""

    @classmethod
    def of(cls, error: Exception) -> "LinkError":
        # redis-py repeats the address, which may hold a password; what Redis itself said holds none.
        if isinstance(error, redis.exceptions.ResponseError):
            return cls(str(error))
        lacking = local_cause(error)
        return cls(type(error).__name__ if lacking is None else f"the router cannot connect: {lacking}")


class Answer(Protocol):
    """The replies to come; a future is one. Who waits for them is told no later than a future tells him.

    Whoever is told by a callback may be told at once, in the midst of what brings the replies. To stop waiting is to
    give up what was asked; it may be done all the same.
    """

    def add_done_callback(self, told: Callable[[Any], object], /) -> None: ...

    def result(self) -> list[Any]:
        """The replies, once they are there. Raises LinkError."""

    def __await__(self) -> Generator[Any, None, list[Any]]: ...


class Link(Protocol):
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

    def execute(self, commands: Sequence[Command | Packed], timeout: float) -> Answer: ...

    async def servers(self) -> "Sequence[ServerLink]":
        """Every server that holds keys, for whoever wants connections of his own to be told of changes.

        Raises LinkError where it is not known which servers there are.
        """

    async def aclose(self) -> None: ...
