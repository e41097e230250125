"""What has been purged, found by what an entry is rather than by a walk over all purges.

Of a scope only its last purge counts, since that one covers all that the earlier ones covered. Scopes that name the
same parts have one shape. So an entry is looked up once for each shape (there are a handful) and document.
"""

from typing import Final

from router.core.cache.entry_filter import Scope, named_by
from router.core.cache.redis_keys import PREFIX

Mark = tuple[int, int]
"""A position in the log of purges: the id of a record, as Redis counts it."""

BEGINNING: Final[Mark] = (0, 0)

_Place = tuple[str | int | None, ...]  # a shape, and the values of the parts that it names


class PurgeIndex:
    """The last purge of each scope, of the `limit` scopes that were purged last.

    - `covers` is true of an entry that some purge after `since` means.
    - It is also true where such a purge may have been forgotten.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._marks: dict[_Place, Mark] = {}  # in the order of the marks
        self._shapes: dict[int, int] = {}  # how many places there are of each
        self._forgotten = BEGINNING

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, mark: Mark, scope: Scope) -> None:
        """A purge; marks are added in their order."""
        if scope.empty:
            return
        shape = _shape(scope)
        parts = (scope.key, scope.tenant, scope.model, scope.system, scope.rag)
        values = tuple([part for part in parts if part is not None])
        for document in (None,) if scope.document is None else named_by(scope.document):
            place: _Place = (shape, *values) if document is None else (shape, *values, document)
            if self._marks.pop(place, None) is None:
                self._shapes[shape] = self._shapes.get(shape, 0) + 1
            self._marks[place] = mark
        while len(self._marks) > self._limit:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        place = next(iter(self._marks))
        self._forgotten = self._marks.pop(place)
        shape = place[0]
        assert isinstance(shape, int)
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]

    def covers(self, key: str, documents: tuple[str, ...], since: Mark) -> bool:
        if since < self._forgotten:
            return True
        parts = key.removeprefix(PREFIX).split(":")
        if len(parts) != 5:
            return False
        named = (key, *parts[:4])
        for shape in self._shapes:
            values = [part for bit, part in enumerate(named) if shape >> bit & 1]
            places: list[_Place] = [(shape, *values)]
            if shape & _DOCUMENT:
                places = [(shape, *values, document) for document in documents]
            if any(self._marks.get(place, BEGINNING) > since for place in places):
                return True
        return False


_DOCUMENT: Final = 1 << 5


def _shape(scope: Scope) -> int:
    """Which parts a scope names, a bit each."""
    parts = (scope.key, scope.tenant, scope.model, scope.system, scope.rag, scope.document)
    return sum(1 << bit for bit, part in enumerate(parts) if part is not None)
