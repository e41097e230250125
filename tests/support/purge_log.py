"""The log of purges in a Redis, for the tests of what writes it."""

from typing import Any, Final

from router.core.cache.entry_filter import EntryFilter, parse_purge_filter
from router.core.cache.redis_keys import PURGE_LOG_KEY

NO_REPLICAS: Final = {"connected": 0, "acknowledged": 0}
"""What the reply to a purge says of the replicas of a Redis that has none."""


async def logged_scopes(client: Any) -> list[EntryFilter]:
    """The purges in the log, without the record that it begins with."""
    found = [dict(fields) for _, fields in await client.xrange(PURGE_LOG_KEY)]
    scopes = [fields.get(b"scope") or fields.get("scope") for fields in found]
    return [parse_purge_filter(scope if isinstance(scope, bytes) else scope.encode()) for scope in scopes if scope]


async def keys_except_log(client: Any) -> set[str]:
    """The names of all keys but the log's."""
    names = [name.decode() if isinstance(name, bytes) else name for name in await client.keys("*")]
    return {name for name in names if name != PURGE_LOG_KEY}
