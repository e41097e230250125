"""Counts hits per entry in the process, and adds them up in Redis periodically.

    rh:1:hits:{tenant}     a sorted set: an entry's key, scored by its hits

Counting must cost almost nothing, since it is done at every hit. So the counts are in a dict with a bound, and an entry
that does not fit is not counted until the dict is emptied. The counts in Redis are bounded, too: for each tenant, only
those of its most popular entries are kept.
"""

from collections.abc import Callable, Iterable
from typing import Final

from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import hits_key
from router.net.redis.commands import Command

MAX_COUNTED_ENTRIES: Final = 10_000
"""Entries that are counted between two calls of `take_commands`; hits of further entries are not counted."""

MAX_ENTRIES_PER_TENANT: Final = 1000
"""Entries of a tenant whose counts Redis keeps."""

COUNTS_TTL: Final = 30 * 86400
"""Seconds after the last hit of any entry of a tenant until its counts expire."""


class HitCounter:
    """Hits since the last call of `take_commands`.

    - `record_hit` never raises and never waits.
    - `take_commands` returns the commands that add the counts in Redis, and starts from zero. The commands of a tenant
      have one key.
    - Counts whose commands are lost are not added again: hits are for information, not for billing.
    """

    __slots__ = ("_hits", "_max_entries", "_renewals")

    def __init__(
        self,
        max_entries: int = MAX_COUNTED_ENTRIES,
        renewals: Callable[[Iterable[str]], list[Command]] = lambda keys: [],
    ) -> None:
        """`renewals`: further commands for the entries that were hit; see WorthRetention and LocalHits."""
        self._hits: dict[str, int] = {}
        self._max_entries = max_entries
        self._renewals = renewals

    def record_hit(self, key: str) -> None:
        hits = self._hits
        if key in hits:
            hits[key] += 1
        elif len(hits) < self._max_entries:
            hits[key] = 1

    def take_commands(self) -> list[Command]:
        """The commands for Redis, in the order in which they must be sent."""
        hits, self._hits = self._hits, {}
        commands = self._renewals(hits)
        tenants: dict[str, None] = {}
        for key, count in hits.items():
            counts = hits_key(KeyParts.parse(key).tenant)
            tenants[counts] = None
            commands.append(("ZINCRBY", counts, count, key))
        for counts in tenants:
            # After all increments: everything except the most popular entries is removed.
            commands.append(("ZREMRANGEBYRANK", counts, 0, -MAX_ENTRIES_PER_TENANT - 1))
            commands.append(("EXPIRE", counts, COUNTS_TTL))
        return commands
