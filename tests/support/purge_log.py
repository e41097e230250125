"""Reads the log of purges in Redis."""

from typing import Any, Final

from router.core.cache.entry_filter import EntryFilter, parse_purge_filter
from router.core.cache.redis_keys import KEYS_APPLIED_KEY, KEYS_USED_KEY, PROMPTS_PATTERN, PURGE_LOG_KEY

NO_REPLICAS: Final = {"connected": 0, "acknowledged": 0}
"""The `replicas` field in the response to a purge if Redis has no replicas."""


async def logged_scopes(client: Any) -> list[EntryFilter]:
    """The purges in the log, without its initial record."""
    records = [dict(fields) for _, fields in await client.xrange(PURGE_LOG_KEY)]
    scopes = [fields.get(b"scope") or fields.get("scope") for fields in records]
    return [parse_purge_filter(scope if isinstance(scope, bytes) else scope.encode()) for scope in scopes if scope]


async def keys_except_log(client: Any) -> set[str]:
    """The keys in Redis, without the purge log, the recent requests, and what routers report of API keys."""
    names = [name.decode() if isinstance(name, bytes) else name for name in [key async for key in client.scan_iter()]]
    left_out = (PURGE_LOG_KEY, KEYS_APPLIED_KEY, KEYS_USED_KEY)
    return {name for name in names if name not in left_out and not name.startswith(PROMPTS_PATTERN[:-1])}
