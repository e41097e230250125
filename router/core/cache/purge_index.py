"""An index of purges: tells whether an entry is covered without a walk over all purges.

Only the last purge with a given filter counts, because it covers everything that the earlier ones covered. Filters that
name the same parts have the same shape. So a check costs one lookup per shape (there are a handful) and document.
"""

from typing import Final

from router.core.cache.entry_filter import EntryFilter, possible_document_names
from router.core.cache.key_parts import KeyParts

PurgePosition = tuple[int, int]
"""A position in the purge log: the two numbers of a Redis stream id."""

BEGINNING: Final[PurgePosition] = (0, 0)

_IndexKey = tuple[str | int | None, ...]  # a shape, then the values of the parts that it names


class PurgeIndex:
    """The position of the last purge of each filter, for the `limit` filters that were purged last.

    - `covers` is true for an entry that a purge after `since` covers.
    - It is also true if such a purge may have been evicted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._positions: dict[_IndexKey, PurgePosition] = {}  # ordered by position, so the first is the oldest
        self._shape_counts: dict[int, int] = {}  # how many index keys have each shape
        self._last_evicted = BEGINNING

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: PurgePosition, entry_filter: EntryFilter) -> None:
        """Adds a purge; positions must be added in ascending order."""
        if entry_filter.is_empty:
            return
        shape = _filter_shape(entry_filter)
        parts = (entry_filter.key, entry_filter.tenant, entry_filter.model, entry_filter.system, entry_filter.rag)
        values = tuple([part for part in parts if part is not None])
        # A document filter may mean an id or a text, so it is indexed under every name that an entry may know it by.
        for document in (None,) if entry_filter.document is None else possible_document_names(entry_filter.document):
            index_key: _IndexKey = (shape, *values) if document is None else (shape, *values, document)
            # Remove and insert, instead of assign: that moves the key to the end of the dict.
            if self._positions.pop(index_key, None) is None:
                self._shape_counts[shape] = self._shape_counts.get(shape, 0) + 1
            self._positions[index_key] = position
        while len(self._positions) > self._limit:
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        index_key = next(iter(self._positions))
        self._last_evicted = self._positions.pop(index_key)
        shape = index_key[0]
        assert isinstance(shape, int)
        self._shape_counts[shape] -= 1
        if not self._shape_counts[shape]:
            del self._shape_counts[shape]

    def covers(self, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
        # A purge after `since` that was evicted may have covered this entry.
        return since < self._last_evicted or self.last_covering(key, documents) > since

    def last_covering(self, key: str, documents: tuple[str, ...]) -> PurgePosition:
        """The last purge that covers such an entry, of those in the index; BEGINNING if there is none."""
        last = BEGINNING
        parts = KeyParts.try_parse(key)
        if parts is None:
            return last
        # In the order of the bits in _filter_shape.
        part_values = (key, parts.tenant, parts.model, parts.system, parts.rag)
        for shape in self._shape_counts:
            values = [part for bit, part in enumerate(part_values) if shape >> bit & 1]
            index_keys: list[_IndexKey] = [(shape, *values)]
            if shape & _DOCUMENT_BIT:
                index_keys = [(shape, *values, document) for document in documents]
            for place in index_keys:
                last = max(last, self._positions.get(place, BEGINNING))
        return last


_DOCUMENT_BIT: Final = 1 << 5  # the index of `document` in _filter_shape


def _filter_shape(entry_filter: EntryFilter) -> int:
    """A bit for each part that a filter names; no bit for a filter that covers all entries."""
    parts = (
        entry_filter.key,
        entry_filter.tenant,
        entry_filter.model,
        entry_filter.system,
        entry_filter.rag,
        entry_filter.document,
    )
    return sum(1 << bit for bit, part in enumerate(parts) if part is not None)
