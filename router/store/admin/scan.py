"""Finding entries among all that Redis holds, without holding Redis up.

Keys come by SCAN, some hundreds at a time, and what is asked of them goes in pipelines of as many commands, each about
one key. So the same code serves one server, a server that a Sentinel names, and a cluster.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import redis.exceptions

from router.core.cache.entry_filter import EntryFilter, possible_document_names
from router.core.cache.key_derivation import EMPTY_HASH
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.net.redis.clock import RedisClock
from router.net.redis.commands import Command
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError
from router.store.codec import decode_documents

RedisClient = Any
"""A redis-py client of a server or a cluster; redis-py leaves much of them untyped."""

OnProgress = Callable[[int], None]
"""Is told now and then how many there have been so far."""

BATCH_SIZE: Final = 200
"""Keys that are asked about at once; more would hold up the requests of a router that an administrator asks."""

# With a key, so that of a cluster's servers it is always the same one that is asked.
_TIME_COMMAND: Final[Command] = ("EVAL", "return redis.call('TIME')", 1, PURGE_LOG_KEY)

_SCAN_COUNT: Final = 500  # keys that one SCAN looks at; some tenths of a millisecond of Redis' time


def no_progress(_: int) -> None:
    """The progress of what nobody watches."""


@contextlib.contextmanager
def map_redis_errors() -> Iterator[None]:
    """What redis-py raises becomes LinkError."""
    try:
        yield
    except REDIS_ERRORS as error:
        raise RedisBackendError.from_exception(error) from error


async def execute_commands(client: RedisClient, commands: Sequence[Command]) -> list[Any]:
    """A reply for each command; None for one that meets a key of another type. Raises LinkError for other refusals."""
    if not commands:
        return []
    with map_redis_errors():
        batch = client.pipeline(transaction=False)
        for command in commands:
            batch.execute_command(*command)
        replies = await batch.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception) and not _is_wrong_type(reply):
                raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


async def read_redis_clock(client: RedisClient) -> RedisClock:
    """Redis' clock, by which entries have their age. Raises LinkError."""
    clock = RedisClock()
    sent = clock.monotonic()
    (reply,) = await execute_commands(client, [_TIME_COMMAND])
    clock.update(reply, sent)
    return clock


def _is_wrong_type(reply: Exception) -> bool:
    return isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE")


async def scan_keys(client: RedisClient, pattern: str) -> AsyncIterator[list[str]]:
    """The keys that a pattern finds, in batches; one may come twice, as SCAN has it. Raises LinkError."""
    batch: list[str] = []
    with map_redis_errors():
        async for key in client.scan_iter(match=pattern, count=_SCAN_COUNT):
            # What is not ASCII is no key of ours; it is let through, and matches nothing.
            batch.append(key.decode("ascii", "replace") if isinstance(key, bytes) else key)
            if len(batch) >= BATCH_SIZE:
                yield batch
                batch = []
    if batch:
        yield batch


async def scan_entries(client: RedisClient, scope: EntryFilter) -> AsyncIterator[list[str]]:
    """The keys of the entries that a scope means, in batches, some of which may be empty. Raises LinkError.

    Where a document is meant, entries that have none are not asked for theirs; one whose names cannot be read is taken
    to be meant.
    """
    if scope.key is not None:
        found = [scope.key] if (await execute_commands(client, [("EXISTS", scope.key)]))[0] else []
        yield await _matching(client, scope, found)
        return
    async for batch in scan_keys(client, scope.key_pattern):
        yield await _matching(client, scope, batch)


async def _matching(client: RedisClient, scope: EntryFilter, keys: list[str]) -> list[str]:
    if scope.document is None:
        return [key for key in keys if scope.matches(key)]
    anything = EntryFilter(all=True)
    asked = [key for key in keys if anything.matches(key) and key.split(":")[5] != EMPTY_HASH]
    named = await execute_commands(client, [("HGET", key, "documents") for key in asked])
    meant = []
    for key, field in zip(asked, named, strict=True):
        try:
            documents = decode_documents(field)
        except ValueError:
            documents = tuple(possible_document_names(scope.document))
        if scope.matches(key, documents):
            meant.append(key)
    return meant
