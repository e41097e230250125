"""Reads the log of purges in Redis."""

from typing import Any, Final

from router.core.cache.entry_filter import EntryFilter, parse_purge_filter
from router.core.cache.redis_keys import PROMPTS_PATTERN, PURGE_LOG_KEY

NO_REPLICAS: Final = {"connected": 0, "acknowledged": 0}
"""The `replicas` field in the response to a purge if Redis has no replicas."""


async def logged_scopes(client: Any) -> list[EntryFilter]:
    """The purges in the log, without its initial record."""
    records = [dict(fields) for _, fields in await client.xrange(PURGE_LOG_KEY)]
    scopes = [fields.get(b"scope") or fields.get("scope") for fields in records]
    return [parse_purge_filter(scope if isinstance(scope, bytes) else scope.encode()) for scope in scopes if scope]


async def keys_except_log(client: Any) -> set[str]:
    """The keys in Redis, without the purge log and the recent requests."""
    names = [name.decode() if isinstance(name, bytes) else name for name in await client.keys("*")]
    return {name for name in names if name != PURGE_LOG_KEY and not name.startswith(PROMPTS_PATTERN[:-1])}
