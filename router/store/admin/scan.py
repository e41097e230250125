"""Finds entries among all keys in Redis without blocking Redis.

SCAN returns keys by the hundred, and the commands for them go in pipelines of as many. Each command has one key, so the
same code works with a single server, a master found by a Sentinel, and a cluster.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import redis.exceptions

from router.core.cache.entry_filter import EntryFilter, possible_document_names
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import EMPTY_HASH, PURGE_LOG_KEY
from router.net.redis.clock import RedisClock
from router.net.redis.commands import Command
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError, UnexpectedReplyError
from router.store.codec import decode_documents

RedisClient = Any
"""A redis-py client of a server or a cluster. Any: redis-py leaves many of its methods untyped."""

OnProgress = Callable[[int], None]
"""Called repeatedly with the number processed so far."""

BATCH_SIZE: Final = 200
"""Keys per pipeline. A larger one would delay the requests of a router that serves an administrator."""

# The key routes it to the same node of a cluster each time.
_TIME_COMMAND: Final[Command] = ("EVAL", "return redis.call('TIME')", 1, PURGE_LOG_KEY)

# What redis-py raises where it parses a reply of another form than it expects.
_PARSER_ERRORS: Final = (TypeError, ValueError, AttributeError, LookupError)
_SCAN_COUNT: Final = 500  # keys per SCAN, which take some tenths of a millisecond of Redis' time


def no_progress(_: int) -> None:
    """Reports nothing."""


class LastCount:
    """An OnProgress that keeps the latest number. `value`: None until there is one, so nothing is changed yet."""

    def __init__(self, show: OnProgress = no_progress) -> None:
        self.value: int | None = None
        self._show = show

    def __call__(self, value: int) -> None:
        self.value = value
        self._show(value)


@contextlib.contextmanager
def map_redis_errors() -> Iterator[None]:
    try:
        yield
    except REDIS_ERRORS as error:
        raise RedisBackendError.from_exception(error) from error
    except _PARSER_ERRORS as error:
        raise UnexpectedReplyError("a reply has an unexpected form") from error


async def execute_commands(client: RedisClient, commands: Sequence[Command]) -> list[Any]:
    """A reply for each command; None for a key of another type. Raises RedisBackendError for other errors."""
    if not commands:
        return []
    with map_redis_errors():
        batch = client.pipeline(transaction=False)
        for command in commands:
            batch.execute_command(*command)
        replies = await batch.execute(raise_on_error=False)  # a key of another type must not fail the others
        for reply in replies:
            if isinstance(reply, Exception) and not _is_wrong_type(reply):
                raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


async def read_redis_clock(client: RedisClient) -> RedisClock:
    """Redis' clock, which determines the age of entries. Raises RedisBackendError."""
    clock = RedisClock()
    sent = clock.monotonic()
    (reply,) = await execute_commands(client, [_TIME_COMMAND])
    clock.update(reply, sent)
    return clock


async def read_server_info(client: RedisClient) -> list[dict[str, Any]]:
    """The reply to INFO of each server that holds keys, as redis-py parses it. Raises RedisBackendError."""
    with map_redis_errors():
        if hasattr(client, "get_primaries"):  # a cluster
            return [await client.info(target_nodes=node) for node in client.get_primaries()]
        return [await client.info()]


def _is_wrong_type(reply: Exception) -> bool:
    return isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE")


async def scan_keys(client: RedisClient, pattern: str) -> AsyncIterator[list[str]]:
    """The keys that match a pattern, in batches. SCAN may return a key twice. Raises RedisBackendError."""
    batch: list[str] = []
    with map_redis_errors():
        async for key in client.scan_iter(match=pattern, count=_SCAN_COUNT):
            # A key that is not ASCII is not the router's; decoded like this, it matches no filter.
            batch.append(key.decode("ascii", "replace") if isinstance(key, bytes) else key)
            if len(batch) >= BATCH_SIZE:
                yield batch
                batch = []
    if batch:
        yield batch


async def scan_entries(client: RedisClient, scope: EntryFilter) -> AsyncIterator[list[str]]:
    """The keys of the entries that a filter matches, in batches, some of which may be empty. Raises RedisBackendError.

    For a filter by document, entries without retrieved text are skipped without reading them; an entry whose document
    names cannot be read counts as matching.
    """
    if scope.key is not None:
        existing = [scope.key] if (await execute_commands(client, [("EXISTS", scope.key)]))[0] else []
        yield await _matching(client, scope, existing)
        return
    async for batch in scan_keys(client, scope.key_pattern):
        yield await _matching(client, scope, batch)


async def _matching(client: RedisClient, scope: EntryFilter, keys: list[str]) -> list[str]:
    if scope.document is None:
        return [key for key in keys if scope.matches(key)]
    candidates = [key for key in keys if (parts := KeyParts.try_parse(key)) is not None and parts.rag != EMPTY_HASH]
    fields = await execute_commands(client, [("HGET", key, "documents") for key in candidates])
    matching = []
    for key, field in zip(candidates, fields, strict=True):
        try:
            documents = decode_documents(field)
        except ValueError:
            documents = tuple(possible_document_names(scope.document))
        if scope.matches(key, documents):
            matching.append(key)
    return matching
