"""Which entries there were, in two megabytes: a set of keys that may take a key for another, and forgets the oldest."""

from typing import Final

MAX_KEYS: Final = 1 << 19
"""At least the newest half a million keys are known; at most twice as many."""

_BITS_PER_KEY: Final = 16


class KnownKeys:
    """A key that was added is in it until `max_keys` others are. Any other is in it with a chance of at most 1/8."""

    # Two generations, as in SeenKeys. One bit for each key: what depends on it tolerates mistakes.
    __slots__ = ("_added", "_bits", "_max_keys", "_new", "_old")

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._bits = _BITS_PER_KEY * max_keys
        self._new, self._old = bytearray(self._bits // 8), bytearray(self._bits // 8)
        self._added = 0

    def add(self, key: str) -> None:
        position, bit = divmod(hash(key) % self._bits, 8)
        if self._new[position] >> bit & 1:
            return
        if self._added == self._max_keys:
            self._new, self._old = bytearray(self._bits // 8), self._new
            self._added = 0
        self._new[position] |= 1 << bit
        self._added += 1

    def __contains__(self, key: str) -> bool:
        position, bit = divmod(hash(key) % self._bits, 8)
        return bool((self._new[position] | self._old[position]) >> bit & 1)
