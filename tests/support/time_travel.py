"""Makes entries older than they are."""

from typing import Any

from tests.support.waiting import eventually

DAY = 86_400
"""The TTL in the default configuration, in seconds."""


async def backdate_entry(redis: Any, key: str, seconds: float) -> None:
    """Makes an entry older, once it exists; local caches receive the change shortly after."""
    created = float(await eventually(lambda: redis.hget(key, "created")))
    await redis.hset(key, "created", created - seconds)
