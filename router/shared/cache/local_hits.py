"""Tells Redis which entries this process serves from its local copies.

Such a hit does not reach Redis. So Redis' LRU and LFU would take the most popular entries for unused ones, and evict
them first.
"""

from collections.abc import Callable, Iterable
from typing import Final

from router.net.redis.commands import Command

# Calls of `touches`, which come every 2 seconds, until an entry may be in one again. Redis' counters of LFU decay once
# a minute, and a full Redis rarely evicts what was used a minute ago.
_ROUNDS: Final = 30
_MAX_TOUCHED: Final = 50_000  # entries; further ones are touched once there is room


class LocalHits:
    """The commands that count as a use of entries with a local copy.

    - An entry is in at most one of 30 consecutive calls of `touches`.
    - An entry without a local copy is in none: Redis has seen its hits.
    """

    def __init__(self, has_copy: Callable[[str], bool]) -> None:
        """`has_copy`: whether this process holds a local copy of the entry with this key."""
        self._has_copy = has_copy
        self._touched: dict[str, int] = {}  # in which round, the oldest first
        self._round = 0

    def touches(self, keys: Iterable[str]) -> list[Command]:
        """`keys`: the entries that were hit since the last call. Each command has one key."""
        self._round += 1
        touched, oldest = self._touched, self._round - _ROUNDS
        while touched and touched[first := next(iter(touched))] <= oldest:
            del touched[first]
        due = [key for key in keys if key not in touched and self._has_copy(key)][: _MAX_TOUCHED - len(touched)]
        touched.update(dict.fromkeys(due, self._round))
        # Reads one small field. TOUCH would do the same, and needs a right that Redis users of earlier versions lack.
        return [("HGET", key, "ttl") for key in due]
