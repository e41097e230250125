"""What has been purged, found by what an entry is rather than by a walk over all purges.

Of a scope only its last purge counts, since that one covers all that the earlier ones covered. Scopes that name the
same parts have one shape. So an entry is looked up once for each shape (there are a handful) and document.
"""

from typing import Final

from router.core.cache.entry_filter import EntryFilter, possible_document_names
from router.core.cache.redis_keys import KEY_PREFIX

PurgePosition = tuple[int, int]
"""A position in the log of purges: the id of a record, as Redis counts it."""

BEGINNING: Final[PurgePosition] = (0, 0)

_IndexKey = tuple[str | int | None, ...]  # a shape, and the values of the parts that it names


class PurgeIndex:
    """The last purge of each scope, of the `limit` scopes that were purged last.

    - `covers` is true of an entry that some purge after `since` means.
    - It is also true where such a purge may have been forgotten.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._positions: dict[_IndexKey, PurgePosition] = {}  # in the order of the marks
        self._shape_counts: dict[int, int] = {}  # how many places there are of each
        self._last_evicted = BEGINNING

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: PurgePosition, entry_filter: EntryFilter) -> None:
        """A purge; marks are added in their order."""
        if entry_filter.is_empty:
            return
        shape = _filter_shape(entry_filter)
        parts = (entry_filter.key, entry_filter.tenant, entry_filter.model, entry_filter.system, entry_filter.rag)
        values = tuple([part for part in parts if part is not None])
        for document in (None,) if entry_filter.document is None else possible_document_names(entry_filter.document):
            place: _IndexKey = (shape, *values) if document is None else (shape, *values, document)
            if self._positions.pop(place, None) is None:
                self._shape_counts[shape] = self._shape_counts.get(shape, 0) + 1
            self._positions[place] = position
        while len(self._positions) > self._limit:
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        place = next(iter(self._positions))
        self._last_evicted = self._positions.pop(place)
        shape = place[0]
        assert isinstance(shape, int)
        self._shape_counts[shape] -= 1
        if not self._shape_counts[shape]:
            del self._shape_counts[shape]

    def covers(self, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
        if since < self._last_evicted:
            return True
        parts = key.removeprefix(KEY_PREFIX).split(":")
        if len(parts) != 5:
            return False
        named = (key, *parts[:4])
        for shape in self._shape_counts:
            values = [part for bit, part in enumerate(named) if shape >> bit & 1]
            places: list[_IndexKey] = [(shape, *values)]
            if shape & _DOCUMENT_BIT:
                places = [(shape, *values, document) for document in documents]
            if any(self._positions.get(place, BEGINNING) > since for place in places):
                return True
        return False


_DOCUMENT_BIT: Final = 1 << 5


def _filter_shape(entry_filter: EntryFilter) -> int:
    """Which parts a scope names, a bit each."""
    parts = (
        entry_filter.key,
        entry_filter.tenant,
        entry_filter.model,
        entry_filter.system,
        entry_filter.rag,
        entry_filter.document,
    )
    return sum(1 << bit for bit, part in enumerate(parts) if part is not None)
