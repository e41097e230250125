"""Entries that look older than they are."""

from typing import Any

from tests.support.waiting import eventually

DAY = 86_400
"""The usual configuration's time to live, in seconds."""


async def backdate_entry(redis: Any, key: str, seconds: float) -> None:
    """Makes an entry look that much older, once it is there; local copies hear of the change in a moment."""
    created = float(await eventually(lambda: redis.hget(key, "created")))
    await redis.hset(key, "created", created - seconds)
