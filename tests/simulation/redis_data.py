"""What a Redis server holds: keys, their values, when they expire, and who is to be told of changes."""

import fnmatch
from collections.abc import Callable
from typing import Any, TypeVar

from tests.simulation.redis_values import RedisError, RedisStream, SortedSet

Value = bytes | dict[bytes, bytes] | SortedSet | RedisStream
T = TypeVar("T", bytes, dict[bytes, bytes], SortedSet, RedisStream)

_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class RedisData:
    """Keys and values. `clock` gives milliseconds; `changed` is told of each key that changes, None of all of them.

    - A key that has expired is gone for whoever asks, and `changed` is told of that when somebody asks.
    - With a `journal`, what stood there before each change is noted, so that `lose_since` can go back.
    """

    def __init__(self, clock: Callable[[], int], changed: Callable[[bytes | None], object]) -> None:
        self.clock = clock
        self._changed = changed
        self._values: dict[bytes, Value] = {}
        self._expires: dict[bytes, int] = {}
        self.journal: list[tuple[float, bytes, Value | None, int | None]] | None = None
        self.instant: Callable[[], float] = lambda: 0.0
        self.changed_keys: dict[bytes, None] = {}
        """Keys that have changed, for whoever empties this."""

    def __len__(self) -> int:
        return len(self._values)

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> Value | None:
        until = self._expires.get(key)
        if until is not None and until <= self.clock():
            self.delete(key)
            return None
        return self._values.get(key)

    def get(self, key: bytes, kind: type[T]) -> T | None:
        """The value. Raises RedisError for one of another type."""
        found = self.find(key)
        if found is None:
            return None
        if type(found) is not kind and not (kind is bytes and isinstance(found, bytes)):
            raise RedisError(_WRONG_TYPE)
        return found

    def expires(self, key: bytes) -> int | None:
        return self._expires.get(key)

    def keys(self, pattern: str = "*") -> list[bytes]:
        return sorted(key for key in list(self._values) if fnmatch.fnmatchcase(key.decode("latin-1"), pattern))

    # -- changing -----------------------------------------------------------------------------------------------------

    def before_change(self, key: bytes) -> None:
        """The value at this key is about to be changed in place."""
        if self.journal is not None:
            before = self._values.get(key)
            copied: Any = before.copy() if isinstance(before, dict | RedisStream) else before
            if isinstance(before, SortedSet):
                copied = SortedSet(before)
            self.journal.append((self.instant(), key, copied, self._expires.get(key)))
        self.changed_keys[key] = None
        self._changed(key)

    def peek(self, key: bytes) -> Value | None:
        """What is there, expired or not."""
        return self._values.get(key)

    def put(self, key: bytes, value: Value, *, keep_expiry: bool = False) -> None:
        self.before_change(key)
        self._values[key] = value
        if not keep_expiry:
            self._expires.pop(key, None)

    def get_or_create(self, key: bytes, kind: type[T]) -> T:
        """The value at a key, which is about to be changed, and is made where there is none."""
        found = self.get(key, kind)
        if found is None:
            found = kind()
            self.put(key, found)
        else:
            self.before_change(key)
        return found

    def delete(self, key: bytes) -> None:
        """Also for what has expired."""
        if key in self._values:
            self.before_change(key)
            del self._values[key]
            self._expires.pop(key, None)

    def remove(self, key: bytes) -> bool:
        """Whether it was there."""
        there = self.find(key) is not None
        self.delete(key)
        return there

    def expire_at(self, key: bytes, milliseconds: int | None) -> None:
        self.before_change(key)
        if milliseconds is None:
            self._expires.pop(key, None)
        elif milliseconds <= self.clock():
            self.delete(key)
        else:
            self._expires[key] = milliseconds

    def expire_some(self, wanted: Callable[[bytes], bool]) -> None:
        """What Redis does beside its work: some of what has expired goes."""
        now = self.clock()
        for key in [key for key, until in self._expires.items() if until <= now and wanted(key)]:
            self.delete(key)

    def clear(self) -> None:
        for key in list(self._values):
            self.before_change(key)
        self._values.clear()
        self._expires.clear()
        self._changed(None)

    def roll_back_to(self, instant: float) -> None:
        """Goes back to what it held then; nobody is told."""
        assert self.journal is not None
        while self.journal and self.journal[-1][0] > instant:
            _, key, value, expires = self.journal.pop()
            self.changed_keys[key] = None
            self._values.pop(key, None)
            self._expires.pop(key, None)
            if value is not None:
                self._values[key] = value
                if expires is not None:
                    self._expires[key] = expires
