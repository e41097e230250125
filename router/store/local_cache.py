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
from router.store.cached_entry import Stored

_OVERHEAD: Final = 1500
"""Bytes that an entry takes beside its forms."""

_ANSWERS_SHARE: Final = 4
"""Replayed forms take at most the limit divided by this."""

_PER_DOCUMENT: Final = 64
"""Bytes that the name of a document takes beside its characters."""


class LocalCopy:
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
        covered: Callable[[str, tuple[str, ...], tuple[int, int]], bool] = lambda *_: False,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`limit` in bytes; 0 turns it off. `clock` gives seconds since the epoch, as Redis counts them.

        `covered`: see Purges.cover. `alive`: whether Redis has shown of late that it tells of changes; see Liveness.
        """
        self._limit = limit
        self._clock = clock
        self._covered = covered
        self._alive = alive
        self._purges = 0  # how many have become known; an entry is checked once after each that was, if it is asked for
        self._entries: dict[str, _Held] = {}
        self._with_answers: dict[str, _Held] = {}  # those with replayed forms, the least recently used first
        self._answers_size = 0
        self._fetches: dict[str, _Fetches] = {}
        self._size = 0
        self._coherent = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return self._size

    def get(self, key: str) -> Stored | None:
        """The entry, if it is here; it may be older than its time to live, as in Redis."""
        if key not in self._entries or not self._alive():
            return None
        held = self._entries.pop(key)
        if self._clock() > held.until:
            # Redis gives it no longer, but tells of that only once it comes upon it, which may be much later.
            self._release(held)
            return None
        if held.checked != self._purges:
            held.checked = self._purges
            if self._covered(key, held.entry.documents, held.entry.purges):
                self._release(held)
                return None
        self._entries[key] = held  # now the most recently used
        if held.answers_size:
            self._with_answers.pop(key)
            self._with_answers[key] = held
        return held

    def fetching(self, key: str) -> Callable[[Entry | None], None]:
        """Says that an entry is being fetched; what it returns must be called with what came of that."""
        if not self._coherent:
            return _forget
        fetches = self._fetches.get(key)
        if fetches is None:
            fetches = self._fetches[key] = _Fetches()
        fetches.count += 1

        def fetched(entry: Entry | None) -> None:
            fetches.count -= 1
            if fetches.count == 0 and self._fetches.get(key) is fetches:
                del self._fetches[key]
            if entry is not None and not fetches.changed and self._coherent:
                self._keep(key, entry)

        return fetched

    def _keep(self, key: str, entry: Entry) -> None:
        size = entry.size + _PER_DOCUMENT * len(entry.documents) + _OVERHEAD
        if size > self._limit:
            return
        self._remove(key)
        self._entries[key] = _Held(key, entry, self, self._purges)
        self.grow(self._entries[key], size)

    def grow(self, held: "_Held", size: int) -> bool:
        """Makes room for so many bytes more of an entry, unless there is none, or it is not here any more."""
        if held.size + size > self._limit or self._entries.get(held.key) is not held:
            return False
        held.size += size
        self._size += size
        while self._size > self._limit:
            self._remove(next(iter(self._entries)))
        return self._entries.get(held.key) is held  # it may have been the least recently used

    def grow_answers(self, held: "_Held", size: int) -> bool:
        """The same for a replayed form of its answer."""
        limit = self._limit // _ANSWERS_SHARE
        if size > limit or not self.grow(held, size):
            return False
        held.answers_size += size
        self._answers_size += size
        self._with_answers[held.key] = held
        while self._answers_size > limit:
            self._drop_answers(next(iter(self._with_answers.values())))
        return held.answers_size > 0

    def _drop_answers(self, held: "_Held") -> None:
        held.forget_answers()
        del self._with_answers[held.key]
        self._answers_size -= held.answers_size
        self._size -= held.answers_size
        held.size -= held.answers_size
        held.answers_size = 0

    def _remove(self, key: str) -> None:
        held = self._entries.pop(key, None)
        if held is not None:
            self._release(held)

    def _release(self, held: "_Held") -> None:
        """Frees the room of an entry that is no longer among those held."""
        if held.answers_size:
            self._drop_answers(held)
        self._size -= held.size

    # -- what is heard ----------------------------------------------------------------------------------------------

    def listening(self) -> None:
        """From now on, every change is told."""
        self._coherent = self._limit > 0

    def changed(self, keys: Sequence[str]) -> None:
        """These have changed."""
        for key in keys:
            self._remove(key)
            fetches = self._fetches.pop(key, None)
            if fetches is not None:
                fetches.changed = True

    def purged(self) -> None:
        """A purge has become known."""
        self._purges += 1

    def drop(self) -> None:
        """Everything may have changed."""
        self.changed([*self._entries, *self._fetches])

    def deaf(self) -> None:
        """From now on, nothing is told."""
        self._coherent = False
        self.drop()


class _Held(Stored):
    """One that is here: `until` in seconds since the epoch, `checked` against so many purges.

    `size` in bytes, of which `answers_size` are replayed forms.
    """

    __slots__ = ("_copy", "answers_size", "checked", "key", "size", "until")

    stays = True

    def __init__(self, key: str, entry: Entry, copy: LocalCopy, checked: int) -> None:
        super().__init__(entry)
        self.checked = checked
        self._copy = copy
        self.key = key
        self.size = self.answers_size = 0
        self.until = entry.created + entry.ttl + entry.stale

    def may_keep(self, size: int) -> bool:
        return self._copy.grow(self, size)

    def may_keep_answer(self, size: int) -> bool:
        return self._copy.grow_answers(self, size)


class _Fetches:
    """Those of one entry that are under way, `count` of them, and whether the entry has `changed` since they began."""

    __slots__ = ("changed", "count")

    def __init__(self) -> None:
        self.changed = False
        self.count = 0


def _forget(_: Entry | None) -> None:
    pass
