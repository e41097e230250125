"""Finding entries among all that Redis holds, without holding Redis up.

Keys come by SCAN, some hundreds at a time, and what is asked of them goes in pipelines of as many commands, each about
one key. So the same code serves one server, a server that a Sentinel names, and a cluster.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import redis.exceptions

from router.core.cache.entry_filter import Scope, named_by
from router.core.cache.key_derivation import NOTHING
from router.core.cache.redis_keys import PURGES
from router.net.redis.clock import RedisClock
from router.net.redis.commands import Command
from router.net.redis.errors import FAULTS, LinkError
from router.store.codec import documents_of

Client = Any
"""A redis-py client of a server or a cluster; redis-py leaves much of them untyped."""

Progress = Callable[[int], None]
"""Is told now and then how many there have been so far."""

BATCH: Final = 200
"""Keys that are asked about at once; more would hold up the requests of a router that an administrator asks."""

# With a key, so that of a cluster's servers it is always the same one that is asked.
_TIME: Final[Command] = ("EVAL", "return redis.call('TIME')", 1, PURGES)

_PER_SCAN: Final = 500  # keys that one SCAN looks at; some tenths of a millisecond of Redis' time


def unheard(_: int) -> None:
    """The progress of what nobody watches."""


@contextlib.contextmanager
def faults_told() -> Iterator[None]:
    """What redis-py raises becomes LinkError."""
    try:
        yield
    except FAULTS as error:
        raise LinkError.of(error) from error


async def ask(client: Client, commands: Sequence[Command]) -> list[Any]:
    """A reply for each command; None for one that meets a key of another type. Raises LinkError for other refusals."""
    if not commands:
        return []
    with faults_told():
        batch = client.pipeline(transaction=False)
        for command in commands:
            batch.execute_command(*command)
        replies = await batch.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception) and not _wrong_type(reply):
                raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


async def redis_clock(client: Client) -> RedisClock:
    """Redis' clock, by which entries have their age. Raises LinkError."""
    clock = RedisClock()
    sent = clock.monotonic()
    (reply,) = await ask(client, [_TIME])
    clock.note(reply, sent)
    return clock


def _wrong_type(reply: Exception) -> bool:
    return isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE")


async def keys(client: Client, pattern: str) -> AsyncIterator[list[str]]:
    """The keys that a pattern finds, in batches; one may come twice, as SCAN has it. Raises LinkError."""
    batch: list[str] = []
    with faults_told():
        async for key in client.scan_iter(match=pattern, count=_PER_SCAN):
            # What is not ASCII is no key of ours; it is let through, and matches nothing.
            batch.append(key.decode("ascii", "replace") if isinstance(key, bytes) else key)
            if len(batch) >= BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


async def find(client: Client, scope: Scope) -> AsyncIterator[list[str]]:
    """The keys of the entries that a scope means, in batches, some of which may be empty. Raises LinkError.

    Where a document is meant, entries that have none are not asked for theirs; one whose names cannot be read is taken
    to be meant.
    """
    if scope.key is not None:
        found = [scope.key] if (await ask(client, [("EXISTS", scope.key)]))[0] else []
        yield await _meant(client, scope, found)
        return
    async for batch in keys(client, scope.pattern):
        yield await _meant(client, scope, batch)


async def _meant(client: Client, scope: Scope, found: list[str]) -> list[str]:
    if scope.document is None:
        return [key for key in found if scope.matches(key)]
    anything = Scope(all=True)
    asked = [key for key in found if anything.matches(key) and key.split(":")[5] != NOTHING]
    named = await ask(client, [("HGET", key, "documents") for key in asked])
    meant = []
    for key, field in zip(asked, named, strict=True):
        try:
            documents = documents_of(field)
        except ValueError:
            documents = tuple(named_by(scope.document))
        if scope.matches(key, documents):
            meant.append(key)
    return meant
