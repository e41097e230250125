"""Keeps entries by their worth: `cache.retention = "worth"`; see router.core.cache.retention for the decision.

Reads from INFO how much of its memory limit Redis uses, and ends the probation of entries that were hit. In a cluster,
the reply is that of one server: the slots spread the entries evenly.
"""

import contextlib
import re
from collections.abc import Iterable
from typing import Final

from router.core.cache.known_keys import KnownKeys
from router.core.cache.retention import WorthAverage, probation_lifetime, worth
from router.core.types import Entry
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies

REFRESH_INTERVAL: Final = 10.0
"""Seconds between two readings of the memory in use."""

_INFO_COMMAND: Final[Command] = ("INFO", "memory")

# By Redis' clock, as `created` is. Reading the entry counts as a use for Redis' LRU, also where the hit was served from
# a local copy. PEXPIRE invalidates the local copies of all routers, so it is sent once: afterwards, the entry has its
# full lifetime but for the time that the replies took.
RENEW_SCRIPT: Final = (
    "local entry = redis.call('HMGET', KEYS[1], 'created', 'ttl', 'stale') "
    "local created, ttl, stale = tonumber(entry[1]), tonumber(entry[2]), tonumber(entry[3]) "
    "if not (created and ttl and stale) then return 0 end "
    "local time = redis.call('TIME') "
    "local left = math.floor(1000 * (created + ttl + stale - time[1]) - time[2] / 1000) "
    "local kept = redis.call('PTTL', KEYS[1]) "
    "if kept < 0 or left < kept + tonumber(ARGV[1]) then return 0 end "
    "return redis.call('PEXPIRE', KEYS[1], left)"
)
"""Gives the entry at KEYS[1] its full lifetime, if that is at least ARGV[1] milliseconds more than it has."""

MIN_RENEWAL_MS: Final = 10_000
"""An entry is written some time after its `created`, so it has a little more time left than its fields say."""

# Calls of `renewals`, which come every 2 seconds, until an entry may be in one again: the script takes Redis about five
# times as long as counting a hit.
_ROUNDS: Final = 30
_MAX_RENEWED: Final = 50_000  # entries; beyond, the minute ends early


class WorthRetention:
    """How long entries are kept, and the commands that prolong it.

    - `lifetime` is at most that of the entry's own `ttl` and `stale`. Without a limit of Redis' memory, or before the
      first reply, it is exactly that.
    - `renewals` never shortens the lifetime of an entry. An entry that was in one is left out for about a minute, if it
      does not change.
    - While it is not `enabled`, it asks Redis for nothing and remembers nothing.
    """

    def __init__(self, pipeline: RedisPipeline) -> None:
        self.enabled = True
        self._pipeline = pipeline
        self._average = WorthAverage()
        self._known = KnownKeys()
        self._memory_use = 0.0
        self._renewed: set[str] = set()
        self._rounds = 0

    def record_change(self, key: str) -> None:
        """The entry at this key has changed in Redis: any router has stored or renewed it, or it has left Redis."""
        if self.enabled:
            self._known.add(key)
            self._renewed.discard(key)  # a new entry at the same key is on probation again

    def lifetime(self, key: str, entry: Entry) -> float:
        """Seconds for which Redis keeps a new entry that nobody asks for; see `probation_lifetime`."""
        relative = self._average.relative(worth(entry.generation_ms, entry.size))
        return probation_lifetime(entry.ttl + entry.stale, relative, self._memory_use, asked_before=key in self._known)

    def renewals(self, keys: Iterable[str]) -> list[Command]:
        """The commands that end the probation of entries that were hit, each for one key."""
        self._rounds += 1
        if self._rounds > _ROUNDS or len(self._renewed) > _MAX_RENEWED:
            self._rounds, self._renewed = 1, set()
        due = [key for key in keys if key not in self._renewed]
        self._renewed.update(due)
        return [("EVAL", RENEW_SCRIPT, 1, key, MIN_RENEWAL_MS) for key in due]

    def refresh(self) -> None:
        """Asks Redis for its memory in use. While Redis is down, the last answer counts."""
        if not self.enabled:
            return
        with contextlib.suppress(RedisDownError):
            self._pipeline.send(_INFO_COMMAND, on_reply=self._on_info)

    def _on_info(self, replies: Replies | None) -> None:
        if replies is not None and isinstance(replies[0], bytes):  # else it is down, or has no permission for INFO
            self._memory_use = memory_use(replies[0])


def memory_use(info: bytes) -> float:
    """The share of the memory limit in use, by the reply to INFO; 0.0 without a limit."""
    used, limit = _number(info, b"used_memory"), _number(info, b"maxmemory")
    return used / limit if limit else 0.0


def _number(info: bytes, name: bytes) -> int:
    found = re.search(rb"^%b:(\d{1,18})\r?$" % name, info, re.MULTILINE)
    return int(found[1]) if found else 0
