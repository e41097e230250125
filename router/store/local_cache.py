"""A copy of hot entries in the process, kept coherent by Redis.

Theory of operation. Redis tells this process of every change under its prefixes (router.net.redis.listener). What it
tells comes over another connection than the entries do, so the news that an entry has changed may overtake the entry as
it was before. Therefore an entry that is being fetched is marked, and if anything is heard of it meanwhile, it is used
once and not copied. While nobody listens, there is no copy.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from router.core.types import Entry
from router.store.cached_entry import CachedEntry

_ENTRY_OVERHEAD: Final = 1500
"""Bytes that an entry takes beside its forms."""

_REPLAYS_DIVISOR: Final = 4
"""Replayed forms take at most the limit divided by this."""

_DOCUMENT_OVERHEAD: Final = 64
"""Bytes that the name of a document takes beside its characters."""


class LocalCache:
    """The entries that were fetched last, as many as there is room for, with what was worked out of them here.

    - What `get` gives is what Redis holds, or held less than a second ago.
    - It never holds more than `limit` bytes; the least recently used entry goes first. Of these, the replayed forms of
      answers take no more than a quarter; those of the least recently used entry go first, and the entry stays.
    - An entry that was changed while it was fetched is not kept.
    - Nothing is held or given while nobody listens, and nothing is given while Redis has shown no sign of late.
    - What a purge covers is not given, whether or not Redis has told that it was deleted.
    """

    def __init__(
        self, limit: int, clock: Callable[[], float] = time.time, *,
        is_purged: Callable[[str, tuple[str, ...], tuple[int, int]], bool] = lambda *_: False,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`limit` in bytes; 0 turns it off. `clock` gives seconds since the epoch, as Redis counts them.

        `covered`: see Purges.cover. `alive`: whether Redis has shown of late that it tells of changes; see Liveness.
        """
        self._limit = limit
        self._clock = clock
        self._is_purged = is_purged
        self._alive = alive
        self._purge_count = (
            0  # how many have become known; an entry is checked once after each that was, if it is asked for
        )
        self._entries: dict[str, _LocalEntry] = {}
        self._with_replays: dict[str, _LocalEntry] = {}  # those with replayed forms, the least recently used first
        self._replays_size = 0
        self._fetches: dict[str, _PendingFetches] = {}
        self._size = 0
        self._coherent = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return self._size

    def get(self, key: str) -> CachedEntry | None:
        """The entry, if it is here; it may be older than its time to live, as in Redis."""
        if key not in self._entries or not self._alive():
            return None
        held = self._entries.pop(key)
        if self._clock() > held.expires_at:
            # Redis gives it no longer, but tells of that only once it comes upon it, which may be much later.
            self._release(held)
            return None
        if held.purges_checked != self._purge_count:
            held.purges_checked = self._purge_count
            if self._is_purged(key, held.entry.documents, held.entry.purges):
                self._release(held)
                return None
        self._entries[key] = held  # now the most recently used
        if held.replays_size:
            self._with_replays.pop(key)
            self._with_replays[key] = held
        return held

    def begin_fetch(self, key: str) -> Callable[[Entry | None], None]:
        """Says that an entry is being fetched; what it returns must be called with what came of that."""
        if not self._coherent:
            return _ignore_fetched
        fetches = self._fetches.get(key)
        if fetches is None:
            fetches = self._fetches[key] = _PendingFetches()
        fetches.count += 1

        def fetched(entry: Entry | None) -> None:
            fetches.count -= 1
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
        self._entries[key] = _LocalEntry(key, entry, self, self._purge_count)
        self.reserve(self._entries[key], size)

    def reserve(self, held: "_LocalEntry", size: int) -> bool:
        """Makes room for so many bytes more of an entry, unless there is none, or it is not here any more."""
        if held.size + size > self._limit or self._entries.get(held.key) is not held:
            return False
        held.size += size
        self._size += size
        while self._size > self._limit:
            self._remove(next(iter(self._entries)))
        return self._entries.get(held.key) is held  # it may have been the least recently used

    def reserve_replay(self, held: "_LocalEntry", size: int) -> bool:
        """The same for a replayed form of its answer."""
        limit = self._limit // _REPLAYS_DIVISOR
        if size > limit or not self.reserve(held, size):
            return False
        held.replays_size += size
        self._replays_size += size
        self._with_replays[held.key] = held
        while self._replays_size > limit:
            self._drop_replays(next(iter(self._with_replays.values())))
        return held.replays_size > 0

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
        """Frees the room of an entry that is no longer among those held."""
        if held.replays_size:
            self._drop_replays(held)
        self._size -= held.size

    # -- what is heard ----------------------------------------------------------------------------------------------

    def enable(self) -> None:
        """From now on, every change is told."""
        self._coherent = self._limit > 0

    def invalidate(self, keys: Sequence[str]) -> None:
        """These have changed."""
        for key in keys:
            self._remove(key)
            fetches = self._fetches.pop(key, None)
            if fetches is not None:
                fetches.invalidated = True

    def on_purge(self) -> None:
        """A purge has become known."""
        self._purge_count += 1

    def invalidate_all(self) -> None:
        """Everything may have changed."""
        self.invalidate([*self._entries, *self._fetches])

    def disable(self) -> None:
        """From now on, nothing is told."""
        self._coherent = False
        self.invalidate_all()


class _LocalEntry(CachedEntry):
    """One that is here: `until` in seconds since the epoch, `checked` against so many purges.

    `size` in bytes, of which `answers_size` are replayed forms.
    """

    __slots__ = ("_cache", "expires_at", "key", "purges_checked", "replays_size", "size")

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
    """Those of one entry that are under way, `count` of them, and whether the entry has `changed` since they began."""

    __slots__ = ("count", "invalidated")

    def __init__(self) -> None:
        self.invalidated = False
        self.count = 0


def _ignore_fetched(_: Entry | None) -> None:
    pass
