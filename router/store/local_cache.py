"""A copy of hot entries in the process, kept coherent by Redis.

Theory of operation. Redis sends this process an invalidation message for every change under its prefixes
(router.net.redis.listener). These messages come over another connection than the entries, so the invalidation of an
entry may arrive before the old value. Therefore each fetch of an entry is registered, and if the entry is invalidated
before the fetch ends, its value is used once and not copied. Without a listener connection there is no copy.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from router.core.types import Entry
from router.store.cached_entry import CachedEntry

_ENTRY_OVERHEAD: Final = 1500
"""Bytes of an entry besides its body and stream."""

_REPLAYS_DIVISOR: Final = 4
"""Replays may use the limit divided by this."""

_DOCUMENT_OVERHEAD: Final = 64
"""Bytes of a document's name besides its characters."""


class LocalCache:
    """The most recently fetched entries, as many as fit, with what was derived from them in this process.

    - `get` returns what Redis holds, or held less than a second ago.
    - It never holds more than `limit` bytes; the least recently used entry is evicted first. Replays of entries use at
      most a quarter of the limit; those of the least recently used entry are dropped first, and the entry stays.
    - An entry that was changed while it was fetched is not kept.
    - Nothing is held or returned without a listener, and nothing is returned while Redis shows no sign of life.
    - An entry that a purge covers is not returned, whether or not Redis has reported its deletion.
    """

    def __init__(
        self, limit: int, clock: Callable[[], float] = time.time, *,
        is_purged: Callable[[str, tuple[str, ...], tuple[int, int]], bool] = lambda *_: False,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`limit` in bytes; 0 turns it off. `clock` gives seconds since the epoch, as Redis counts them.

        `is_purged`: see Purges.covers. `alive`: whether the connection for invalidations has shown a sign of life
        recently; see Liveness.
        """
        self._limit = limit
        self._clock = clock
        self._is_purged = is_purged
        self._alive = alive
        # Purges known so far. An entry is checked against them at its next `get`, not at the purge.
        self._purge_count = 0
        self._entries: dict[str, _LocalEntry] = {}
        self._with_replays: dict[str, _LocalEntry] = {}  # those with replays, least recently used first
        self._replays_size = 0
        self._fetches: dict[str, _PendingFetches] = {}
        self._size = 0
        self._coherent = False

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, key: str) -> bool:
        """Whether there is a copy, which need not be valid any more."""
        return key in self._entries

    @property
    def size(self) -> int:
        """Approximate memory use in bytes."""
        return self._size

    def resize(self, limit: int) -> None:
        """Evicts what does not fit any more."""
        self._limit = limit
        while self._size > limit:
            self._remove(next(iter(self._entries)))
        while self._replays_size > limit // _REPLAYS_DIVISOR:
            self._drop_replays(next(iter(self._with_replays.values())))

    def get(self, key: str) -> CachedEntry | None:
        """The entry, if it is here. It may be older than its time to live, as in Redis."""
        if key not in self._entries or not self._alive():
            return None
        held = self._entries.pop(key)  # put back below as the most recently used: dictionaries keep insertion order
        if self._clock() > held.expires_at:
            # Redis no longer returns it, but sends the invalidation only when it removes the key, possibly much later.
            self._release(held)
            return None
        if held.purges_checked != self._purge_count:
            held.purges_checked = self._purge_count
            if self._is_purged(key, held.entry.documents, held.entry.purges):
                self._release(held)
                return None
        self._entries[key] = held
        if held.replays_size:
            self._with_replays.pop(key)
            self._with_replays[key] = held
        return held

    def begin_fetch(self, key: str) -> Callable[[Entry | None], None]:
        """Register a fetch of an entry. The function that it returns must be called with the result."""
        # A change may go unreported during this fetch, so its result is not kept even if reporting starts meanwhile.
        if not self._coherent or not self._limit:
            return _ignore_fetched
        fetches = self._fetches.get(key)
        if fetches is None:
            fetches = self._fetches[key] = _PendingFetches()
        fetches.count += 1

        def fetched(entry: Entry | None) -> None:
            fetches.count -= 1
            # `invalidate` removes it, and a later fetch may have registered another.
            if fetches.count == 0 and self._fetches.get(key) is fetches:
                del self._fetches[key]
            if entry is not None and not fetches.invalidated and self._coherent:
                self._insert(key, entry)

        return fetched

    def _insert(self, key: str, entry: Entry) -> None:
        size = entry.size + _DOCUMENT_OVERHEAD * len(entry.documents) + _ENTRY_OVERHEAD
        if size > self._limit:
            return
        self._remove(key)
        # Inserted with size 0 first: `reserve` counts the bytes and evicts others.
        self._entries[key] = _LocalEntry(key, entry, self, self._purge_count)
        self.reserve(self._entries[key], size)

    def reserve(self, held: "_LocalEntry", size: int) -> bool:
        """Reserve more bytes for an entry, evicting others. False if they do not fit or the entry is no longer here."""
        if held.size + size > self._limit or self._entries.get(held.key) is not held:
            return False
        held.size += size
        self._size += size
        while self._size > self._limit:
            self._remove(next(iter(self._entries)))
        return self._entries.get(held.key) is held  # it may have been the least recently used

    def reserve_replay(self, held: "_LocalEntry", size: int) -> bool:
        limit = self._limit // _REPLAYS_DIVISOR
        if size > limit or not self.reserve(held, size):
            return False
        held.replays_size += size
        self._replays_size += size
        self._with_replays[held.key] = held
        while self._replays_size > limit:
            self._drop_replays(next(iter(self._with_replays.values())))
        return held.replays_size > 0  # 0 if its own replays were dropped in the loop

    def _drop_replays(self, held: "_LocalEntry") -> None:
        held.drop_replays()
        del self._with_replays[held.key]
        self._replays_size -= held.replays_size
        self._size -= held.replays_size
        held.size -= held.replays_size
        held.replays_size = 0

    def _remove(self, key: str) -> None:
        held = self._entries.pop(key, None)
        if held is not None:
            self._release(held)

    def _release(self, held: "_LocalEntry") -> None:
        # The caller has removed it from `_entries`.
        if held.replays_size:
            self._drop_replays(held)
        self._size -= held.size

    # -- notifications: from `enable` to `disable`, every change is reported ----------------------------------------

    def enable(self) -> None:
        self._coherent = True

    def invalidate(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._remove(key)
            fetches = self._fetches.pop(key, None)
            if fetches is not None:
                fetches.invalidated = True

    def on_purge(self) -> None:
        self._purge_count += 1

    def invalidate_all(self) -> None:
        self.invalidate([*self._entries, *self._fetches])

    def disable(self) -> None:
        self._coherent = False
        self.invalidate_all()


class _LocalEntry(CachedEntry):
    """An entry in the local cache: `expires_at` in seconds since the epoch, checked against `purges_checked` purges.

    `size` in bytes, `replays_size` of which are replays.
    """

    shared = True

    def __init__(self, key: str, entry: Entry, cache: LocalCache, purges_checked: int) -> None:
        super().__init__(entry)
        self.purges_checked = purges_checked
        self._cache = cache
        self.key = key
        self.size = self.replays_size = 0
        self.expires_at = entry.created + entry.ttl + entry.stale

    def reserve(self, size: int) -> bool:
        return self._cache.reserve(self, size)

    def reserve_replay(self, size: int) -> bool:
        return self._cache.reserve_replay(self, size)


class _PendingFetches:
    """The fetches of one entry in progress: their `count`, and whether the entry was `invalidated` since they began."""

    def __init__(self) -> None:
        self.invalidated = False
        self.count = 0


def _ignore_fetched(_: Entry | None) -> None:
    pass
