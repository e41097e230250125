"""The contents of a Redis server: keys, values, expiries, and notifications of changes."""

import fnmatch
from collections.abc import Callable
from typing import Any, TypeVar

from tests.simulation.redis_values import RedisError, RedisStream, SortedSet

Value = bytes | dict[bytes, bytes] | list[bytes] | SortedSet | RedisStream
T = TypeVar("T", bytes, dict[bytes, bytes], list[bytes], SortedSet, RedisStream)

_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class RedisData:
    """Keys and values. `clock` gives milliseconds; `changed` is called with each key that changes, with None for all of
    them.

    - An expired key cannot be read. `changed` is called for it at the next access.
    - With a `journal`, the old value is recorded before each change, so that `roll_back_to` can restore it.
    """

    def __init__(self, clock: Callable[[], int], changed: Callable[[bytes | None], object]) -> None:
        self.clock = clock
        self._changed = changed
        self._values: dict[bytes, Value] = {}
        self._expires: dict[bytes, int] = {}
        self.journal: list[tuple[float, bytes, Value | None, int | None]] | None = None
        self.instant: Callable[[], float] = lambda: 0.0
        self.full = False
        """Whether there is no room for more; see `check_memory`."""
        self.changed_keys: dict[bytes, None] = {}
        """Keys that have changed; the reader clears it."""

    def __len__(self) -> int:
        return len(self._values)

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> Value | None:
        expires_at = self._expires.get(key)
        if expires_at is not None and expires_at <= self.clock():
            self.delete(key)
            return None
        return self._values.get(key)

    def get(self, key: bytes, kind: type[T]) -> T | None:
        """The value. Raises RedisError for another type."""
        value = self.find(key)
        if value is None:
            return None
        if type(value) is not kind and not (kind is bytes and isinstance(value, bytes)):
            raise RedisError(_WRONG_TYPE)
        return value

    def expires(self, key: bytes) -> int | None:
        return self._expires.get(key)

    def keys(self, pattern: str = "*") -> list[bytes]:
        return sorted(key for key in list(self._values) if fnmatch.fnmatchcase(key.decode("latin-1"), pattern))

    def check_memory(self) -> None:
        """Called before what may take memory. Raises RedisError if there is none."""
        if self.full:
            raise RedisError("OOM command not allowed when used memory > 'maxmemory'.")

    # -- changing -----------------------------------------------------------------------------------------------------

    def before_change(self, key: bytes) -> None:
        """Must be called before the value at a key is changed in place."""
        if self.journal is not None:
            before = self._values.get(key)
            copied: Any = before.copy() if isinstance(before, dict | list | RedisStream) else before
            if isinstance(before, SortedSet):
                copied = SortedSet(before)
            self.journal.append((self.instant(), key, copied, self._expires.get(key)))
        self.changed_keys[key] = None
        self._changed(key)

    def peek(self, key: bytes) -> Value | None:
        """The value, expired or not."""
        return self._values.get(key)

    def put(self, key: bytes, value: Value, *, keep_expiry: bool = False) -> None:
        self.before_change(key)
        self._values[key] = value
        if not keep_expiry:
            self._expires.pop(key, None)

    def get_or_create(self, key: bytes, kind: type[T]) -> T:
        """The value at a key, which the caller is about to change."""
        value = self.get(key, kind)
        if value is None:
            value = kind()
            self.put(key, value)
        else:
            self.before_change(key)
        return value

    def delete(self, key: bytes) -> None:
        """Delete a key, expired or not."""
        if key in self._values:
            self.before_change(key)
            del self._values[key]
            self._expires.pop(key, None)

    def remove(self, key: bytes) -> bool:
        existed = self.find(key) is not None
        self.delete(key)
        return existed

    def expire_at(self, key: bytes, milliseconds: int | None) -> None:
        self.before_change(key)
        if milliseconds is None:
            self._expires.pop(key, None)
        elif milliseconds <= self.clock():
            self.delete(key)
        else:
            self._expires[key] = milliseconds

    def expire_some(self, wanted: Callable[[bytes], bool]) -> None:
        """Redis' active expiration: deletes some of the expired keys."""
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
        """Restore the contents of an instant, without notifications."""
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
