"""Which idle connection serves next, and which have waited too long: decisions only, the caller closes what it gets.

The youngest goes out first: it is the one that the server is least likely to have given up, and the others age and are
closed, so that the pool shrinks to what the load needs.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class IdlePool(Generic[K, T]):
    """Idle items (connections) by key (origin).

    - `take` gives the item of the key that was put last, and never one that has been idle for `expiry` seconds.
    - `put` keeps at most `max_idle` items over all keys; what it returns has to be closed.
    - `expire` returns what has been idle for `expiry` seconds, which has to be closed; `next_expiry` says when to ask.
    - No operation walks over the items, however many there are.

    Times are seconds of any clock that does not go back.
    """

    __slots__ = ("_by_key", "_expiry", "_idle_since", "_max_idle")

    def __init__(self, *, max_idle: int, expiry: float) -> None:
        self._max_idle = max_idle
        self._expiry = expiry
        # Dictionaries for their order: the oldest first, and any item removed in constant time.
        self._idle_since: dict[T, tuple[K, float]] = {}
        self._by_key: dict[K, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._idle_since)

    def take(self, key: K, now: float) -> T | None:
        """The youngest item of this key, which is no longer in the pool; None if there is none that is young enough."""
        stack = self._by_key.get(key)
        if stack is None:
            return None
        item, _ = stack.popitem()
        if now - self._idle_since[item][1] >= self._expiry:
            stack[item] = None
            return None
        del self._idle_since[item]
        if not stack:
            del self._by_key[key]
        return item

    def put(self, key: K, item: T, now: float) -> list[T]:
        """Add an item that has just become idle, and return those that are over the bound, oldest first."""
        self._idle_since[item] = (key, now)
        stack = self._by_key.get(key)
        if stack is None:
            stack = self._by_key[key] = {}
        stack[item] = None
        surplus = len(self._idle_since) - self._max_idle
        return self._pop_oldest(surplus) if surplus > 0 else []

    def discard(self, item: T) -> None:
        """Forget an item, if it is there: it was closed from the other side."""
        entry = self._idle_since.pop(item, None)
        if entry is not None:
            stack = self._by_key[entry[0]]
            del stack[item]
            if not stack:
                del self._by_key[entry[0]]

    def expire(self, now: float) -> list[T]:
        """Remove and return what has been idle for too long, oldest first."""
        expired: list[T] = []
        while (oldest := self.next_expiry()) is not None and oldest <= now:
            expired += self._pop_oldest(1)
        return expired

    def next_expiry(self) -> float | None:
        """When the oldest item will have been idle for too long; None if nothing is idle."""
        for _, since in self._idle_since.values():
            return since + self._expiry
        return None

    def clear(self) -> list[T]:
        """Remove and return all."""
        return self._pop_oldest(len(self._idle_since))

    def _pop_oldest(self, count: int) -> list[T]:
        items: list[T] = []
        for _ in range(count):
            item = next(iter(self._idle_since))
            self.discard(item)
            items.append(item)
        return items
