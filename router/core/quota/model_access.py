"""The models that a tenant may use, by names and patterns."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

ANY_TEXT: Final = "*"


class ModelAccess:
    """A tenant's list of models: public names, aliases, and patterns in which `*` stands for any text.

    A model is allowed if an entry matches its name or one of its aliases. So an alias stands for its model, whichever
    of its names a client sends.
    """

    __slots__ = ("_names", "_patterns", "entries")

    def __init__(self, entries: Sequence[str]) -> None:
        self.entries = tuple(entries)
        self._names = frozenset(entry for entry in entries if ANY_TEXT not in entry)
        self._patterns = tuple(_compile(entry) for entry in entries if ANY_TEXT in entry)

    def allows(self, name: str, aliases: Iterable[str] = ()) -> bool:
        return any(self._matches(each) for each in (name, *aliases))

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """The entries that match none of these names, aliases included."""
        known = list(names)
        return [entry for entry in self.entries if not any(map(_compile(entry).fullmatch, known))]

    def _matches(self, name: str) -> bool:
        return name in self._names or any(pattern.fullmatch(name) for pattern in self._patterns)


def _compile(entry: str) -> re.Pattern[str]:
    # Adjacent stars are one: several of them would make a failing match slow.
    literals = re.sub(r"\*+", ANY_TEXT, entry).split(ANY_TEXT)
    return re.compile(".*".join(map(re.escape, literals)), re.DOTALL)
