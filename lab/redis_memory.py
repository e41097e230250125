"""A model of a Redis that is full: sampled LRU and LFU as in Redis 7.0's evict.c, in virtual time.

What is modelled: `maxmemory-samples 5`; the pool of 16 candidates, which lives on between evictions and keeps the idle
times with which candidates were found; LRU's clock of a second; LFU's logarithmic counter (factor 10, new keys have 5)
and its decay by 1 for each `lfu-decay-time` minutes since the last access. Memory is the sum of the entries' sizes.
What is not: keys are sampled uniformly, where Redis takes neighbours in its hash table, and an expired key is gone at
once, where Redis finds it within a fraction of a second.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

SAMPLES: Final = 5
POOL: Final = 16
LFU_INITIAL: Final = 5
LFU_FACTOR: Final = 10

Idle = Callable[["Entry", float], float]


class Entry:
    """A key: `size` in bytes, `expires` in seconds, `index` in the list of keys. Idle times: `accessed`, `counter`."""

    __slots__ = ("accessed", "counter", "created", "expires", "index", "key", "size")

    def __init__(self, key: int, size: int, now: float, index: int) -> None:
        self.key = key
        self.size = size
        self.created = now
        self.expires = 0.0
        self.accessed = now
        self.counter = LFU_INITIAL
        self.index = index


class RedisMemory:
    """`policy`: `lru`, `lfu` or `ttl`. Every key has an expiry, so `volatile-` and `allkeys-` are the same here."""

    def __init__(self, limit: int, policy: str, random: Random, lfu_decay_minutes: int = 1) -> None:
        self.used = 0
        self.evicted = 0
        self._limit = limit
        self._decay = 60.0 * lfu_decay_minutes
        self._random = random
        self._lfu = policy == "lfu"
        self._idle: Idle = {"lru": _lru_idle, "lfu": self._lfu_idle, "ttl": _nearest_expiry}[policy]
        self._entries: dict[int, Entry] = {}
        self._keys: list[Entry] = []
        self._pool: list[tuple[float, int, Entry]] = []
        self._expiries: list[tuple[float, int, Entry]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: int, now: float) -> Entry | None:
        """The entry at a key; a `touch` is not included."""
        while self._expiries and self._expiries[0][0] <= now:
            entry = heappop(self._expiries)[2]
            if entry.index >= 0 and entry.expires <= now:
                self.remove(entry)
        return self._entries.get(key)

    def touch(self, entry: Entry, now: float) -> None:
        """What every command does with the key that it reads or writes."""
        if self._lfu:
            counter = self._decayed(entry, now)
            base = max(0, counter - LFU_INITIAL)
            if counter < 255 and self._random.random() < 1 / (base * LFU_FACTOR + 1):
                counter += 1
            entry.counter = counter
        entry.accessed = now

    def put(self, key: int, size: int, now: float, lifetime: float) -> Entry:
        """Replaces what is at the key. Redis evicts before a command, if it uses more than its limit already."""
        present = self._entries.get(key)
        while self._keys and self.used > self._limit:
            self._evict(now)
            present = self._entries.get(key)
        if present is not None:
            self.remove(present)
        entry = Entry(key, size, now, len(self._keys))
        self._entries[key] = entry
        self._keys.append(entry)
        self.used += size
        self.expire(entry, now + lifetime)
        return entry

    def expire(self, entry: Entry, at: float) -> None:
        entry.expires = at
        self._added += 1
        heappush(self._expiries, (at, self._added, entry))

    def remove(self, entry: Entry) -> None:
        last = self._keys.pop()
        if last is not entry:
            self._keys[entry.index] = last
            last.index = entry.index
        entry.index = -1
        del self._entries[entry.key]
        self.used -= entry.size

    def _evict(self, now: float) -> None:
        pool, keys = self._pool, self._keys
        while True:
            for _ in range(min(SAMPLES, len(keys))):
                entry = keys[int(self._random.random() * len(keys))]
                idle = self._idle(entry, now)
                if len(pool) == POOL and idle <= pool[0][0]:
                    continue
                self._added += 1
                pool.append((idle, -self._added, entry))
                pool.sort()
                if len(pool) > POOL:
                    del pool[0]
            while pool:
                entry = pool.pop()[2]
                if entry.index >= 0:  # else it has expired since, or was evicted as another candidate
                    self.remove(entry)
                    self.evicted += 1
                    return

    def _decayed(self, entry: Entry, now: float) -> int:
        periods = int((now // 60 - entry.accessed // 60) * 60 / self._decay)
        return max(0, entry.counter - periods)

    def _lfu_idle(self, entry: Entry, now: float) -> float:
        return 255 - self._decayed(entry, now)


def _lru_idle(entry: Entry, now: float) -> float:
    return now // 1 - entry.accessed // 1


def _nearest_expiry(entry: Entry, now: float) -> float:
    return -entry.expires
