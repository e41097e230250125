"""Which idle connection is used next, and which have expired: decisions only, the caller closes what is returned.

The connection that became idle last is used first: the server is least likely to have closed it. The others age and
expire, so the pool shrinks to what the load needs.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class IdlePool(Generic[K, T]):
    """Idle items (connections) by key (origin).

    - `take` removes and returns the item of the key that was put last; None if that has been idle for `expiry` seconds.
    - `put` keeps at most `max_idle` items over all keys; the caller must close what it returns, the oldest items.
    - `expire` returns what has been idle for `expiry` seconds, to be closed; `next_expiry` is when to call it again.
    - No operation iterates over all items.

    Times are seconds of any monotonic clock.
    """

    def __init__(self, *, max_idle: int, expiry: float) -> None:
        self._max_idle = max_idle
        self._expiry = expiry
        # Dictionaries are ordered: the oldest item comes first, and any item can be removed in constant time.
        self._idle_since: dict[T, tuple[K, float]] = {}
        self._by_key: dict[K, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._idle_since)

    def take(self, key: K, now: float) -> T | None:
        stack = self._by_key.get(key)
        if stack is None:
            return None
        item, _ = stack.popitem()
        if now - self._idle_since[item][1] >= self._expiry:
            stack[item] = None  # `expire` returns it to be closed; the others of the key are older still
            return None
        del self._idle_since[item]
        if not stack:
            del self._by_key[key]
        return item

    def put(self, key: K, item: T, now: float) -> list[T]:
        self._idle_since[item] = (key, now)
        stack = self._by_key.get(key)
        if stack is None:
            stack = self._by_key[key] = {}
        stack[item] = None
        surplus = len(self._idle_since) - self._max_idle
        return self._pop_oldest(surplus) if surplus > 0 else []

    def discard(self, item: T) -> None:
        """Remove an item, if it is there: the server has closed it."""
        entry = self._idle_since.pop(item, None)
        if entry is not None:
            stack = self._by_key[entry[0]]
            del stack[item]
            if not stack:
                del self._by_key[entry[0]]

    def expire(self, now: float) -> list[T]:
        expired: list[T] = []
        while (oldest := self.next_expiry()) is not None and oldest <= now:
            expired += self._pop_oldest(1)
        return expired

    def next_expiry(self) -> float | None:
        for _, since in self._idle_since.values():  # the first is the oldest
            return since + self._expiry
        return None

    def clear(self) -> list[T]:
        return self._pop_oldest(len(self._idle_since))

    def _pop_oldest(self, count: int) -> list[T]:
        items: list[T] = []
        for _ in range(count):
            item = next(iter(self._idle_since))
            self.discard(item)
            items.append(item)
        return items
