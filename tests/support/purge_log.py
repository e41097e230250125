"""The log of purges in a Redis, for the tests of what writes it."""

from typing import Any, Final

from router.core.cache.entry_filter import Scope, read_scope
from router.core.cache.redis_keys import PURGES

NO_REPLICAS: Final = {"connected": 0, "acknowledged": 0}
"""What the reply to a purge says of the replicas of a Redis that has none."""


async def recorded(client: Any) -> list[Scope]:
    """The purges in the log, without the record that it begins with."""
    found = [dict(fields) for _, fields in await client.xrange(PURGES)]
    scopes = [fields.get(b"scope") or fields.get("scope") for fields in found]
    return [read_scope(scope if isinstance(scope, bytes) else scope.encode()) for scope in scopes if scope]


async def other_keys(client: Any) -> set[str]:
    """The names of all keys but the log's."""
    names = [name.decode() if isinstance(name, bytes) else name for name in await client.keys("*")]
    return {name for name in names if name != PURGES}
