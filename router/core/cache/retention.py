"""Decides how long Redis keeps an entry that nobody has asked for again, by its worth and by how full Redis is.

Theory of operation. A full Redis evicts the least recently used entry, whatever it took to generate and however large
it is. Most entries are never asked for again, and these take most of the memory. So an entry is first kept on
probation: the less, the fuller Redis is, and the fewer seconds of generation it saves per byte in comparison with
other entries. Its first hit ends the probation. Then it has the lifetime that its TTL gives it. An entry that replaces
one which has left Redis was asked for before, and is kept on probation for longer.

The lifetime follows from the memory in use alone, so routers need not agree on anything, and a router that starts
decides like the others. It is a proportional controller: shorter lifetimes free memory, which makes them longer again.
`lab/eviction.py` compares this with eviction alone.

Probation only ever deletes an entry earlier. Freshness, `Age` and `Cache-Control` follow from the entry's own fields.
"""

import math
from typing import Final, Literal

Retention = Literal["ttl", "worth"]
"""How long Redis keeps an entry: for its TTL, or by its worth until it is first asked for again."""

MIN_LIFETIME: Final = 60.0
"""Seconds that an entry is kept at least, if its TTL is not shorter: clients that retry find it."""

_FREE: Final = 0.5  # with less than this share of the memory in use, every entry of usual worth is kept for its TTL
_FULL_LIFETIME: Final = 900.0  # seconds that an entry of average worth is kept on probation while Redis is full
_FREE_FACTOR: Final = 32.0  # while there is room, entries of 1/32 of the average worth are kept for their TTL, too

# Memory of an entry beside its body and stream, and for each of their bytes (docs/upgrading.md).
_OVERHEAD: Final = 2200
_ALLOCATED: Final = 1.2

_ASKED_BEFORE: Final = 10.0  # times the lifetime of an entry that is asked for the first time

_AVERAGED: Final = 500  # entries, roughly, whose worths make the average


def worth(generation_ms: float, size: int) -> float:
    """Milliseconds of generation saved by a hit, per byte of Redis' memory. `size`: bytes of the entry as stored."""
    return max(generation_ms, 1.0) / (_OVERHEAD + _ALLOCATED * size)


def probation_lifetime(full: float, relative_worth: float, memory_use: float, *, asked_before: bool = False) -> float:
    """Seconds for which Redis keeps an entry that nobody asks for, from MIN_LIFETIME to `full`.

    `full`: seconds for which it is kept otherwise. `relative_worth`: its worth divided by the average. `memory_use`:
    the share of Redis' memory limit in use, 0.0 for no limit. `asked_before`: the same request had an entry before.
    """
    if memory_use <= _FREE or full <= MIN_LIFETIME:
        return full
    pressure = min(1.0, (memory_use - _FREE) / (1 - _FREE))
    longest, shortest = full * _FREE_FACTOR, min(full, _FULL_LIFETIME)
    average = longest * math.pow(shortest / longest, pressure)
    expected = average * relative_worth * (_ASKED_BEFORE if asked_before else 1.0)
    return min(full, max(MIN_LIFETIME, expected))


class WorthAverage:
    """The geometric mean of the worth of recent entries: a few entries of extreme worth change it little."""

    def __init__(self) -> None:
        self._log_mean = 0.0
        self._count = 0

    def relative(self, value: float) -> float:
        """A worth divided by the mean, which includes it now."""
        self._count = min(self._count + 1, _AVERAGED)
        log = math.log(value)
        self._log_mean += (log - self._log_mean) / self._count
        return math.exp(log - self._log_mean)
