"""How often entries are hit: counted in the process, and added up in Redis now and then.

    rh:1:hits:{tenant}     a sorted set: an entry's key, and its hits

Counting must cost next to nothing, since it is done for every hit; so it is a map, and what does not fit goes uncounted
until the map is emptied. What is in Redis has a bound too: the most popular of each tenant remain.
"""

from typing import Final

from router.core.cache.redis_keys import KEY_PREFIX, hits_key
from router.net.redis.commands import Command

MAX_COUNTED_ENTRIES: Final = 10_000
"""Entries that are counted between two emptyings; more of them go uncounted."""

MAX_ENTRIES_PER_TENANT: Final = 1000
"""Entries of a tenant that stay counted in Redis."""

COUNTS_TTL: Final = 30 * 86400
"""Seconds after the last hit of a tenant's entries at which their counts are dropped."""


class HitCounter:
    """Hits since they were last taken.

    - `note` never raises and never waits.
    - `take` gives the commands that add up what was noted, and begins anew; those of a tenant are about one key.
    - What was taken and got lost on its way is not counted: hits are told to people, not billed.
    """

    __slots__ = ("_hits", "_max_entries")

    def __init__(self, max_entries: int = MAX_COUNTED_ENTRIES) -> None:
        self._hits: dict[str, int] = {}
        self._max_entries = max_entries

    def record_hit(self, key: str) -> None:
        """An entry was hit."""
        hits = self._hits
        if key in hits:
            hits[key] += 1
        elif len(hits) < self._max_entries:
            hits[key] = 1

    def take_commands(self) -> list[Command]:
        """The commands for Redis, in the order in which they are to be sent."""
        hits, self._hits = self._hits, {}
        commands: list[Command] = []
        tenants: dict[str, None] = {}
        for key, count in hits.items():
            counts = hits_key(key[len(KEY_PREFIX) :].partition(":")[0])
            tenants[counts] = None
            commands.append(("ZINCRBY", counts, count, key))
        for counts in tenants:
            commands.append(("ZREMRANGEBYRANK", counts, 0, -MAX_ENTRIES_PER_TENANT - 1))
            commands.append(("EXPIRE", counts, COUNTS_TTL))
        return commands
