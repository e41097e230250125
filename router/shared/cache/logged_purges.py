"""The purges of a log that is read once, by a process that does not follow it; see router.shared.cache.purges."""

from collections.abc import Iterable
from typing import Any

from router.core.cache.purge_index import BEGINNING, PurgeIndex, PurgePosition
from router.shared.cache.purges import MAX_PURGES, decode_entry_filter, parse_position


class LoggedPurges:
    """The purges of a whole log, of which `add` takes the records page by page."""

    def __init__(self) -> None:
        self._index = PurgeIndex(MAX_PURGES)
        self._first = self._last = BEGINNING

    def add(self, records: Iterable[tuple[bytes, Any]]) -> None:
        """Records in ascending order. Raises ValueError for an id of another form."""
        for id_, fields in records:
            self._last = parse_position(id_)
            self._first = self._last if self._first == BEGINNING else self._first
            if (scope := decode_entry_filter(fields)) is not None:
                self._index.add(self._last, scope)

    def covers(self, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
        """Whether what was stored with the position `since` was purged after it.

        A position outside of the log counts as purged: it belongs to a log that is lost.
        """
        return not self._first <= since <= self._last or self._index.covers(key, documents, since)
