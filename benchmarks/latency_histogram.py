"""A histogram of durations, of bounded size."""

import math
from array import array
from typing import Final

LOWEST: Final = 1e-6
"""Seconds; shorter durations are counted as this."""

GROWTH: Final = 1.01
"""The ratio of two neighbouring bounds: percentiles are at most 1 % too high."""

_BUCKETS: Final = 2100  # up to 1,190 seconds; longer durations are in the last one
_LOG_GROWTH: Final = math.log(GROWTH)


class LatencyHistogram:
    """Counts durations in seconds; 17 KB, whatever their number."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.max = 0.0
        self._counts = array("Q", bytes(8 * _BUCKETS))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum += seconds
        if seconds > self.max:
            self.max = seconds
        place = 0 if seconds <= LOWEST else math.ceil(math.log(seconds / LOWEST) / _LOG_GROWTH)
        self._counts[place if place < _BUCKETS else -1] += 1

    def percentile(self, share: float) -> float:
        """Seconds that `share` (0 to 1) of the durations do not exceed; nan without any."""
        if not self.count:
            return math.nan
        # The nearest rank: the smallest value with at least this share at or below it.
        rank = max(1, math.ceil(share * self.count - 1e-9))
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return min(LOWEST * GROWTH**place, self.max) if place < _BUCKETS - 1 else self.max
        return self.max

    def include(self, other: "LatencyHistogram") -> None:
        """Adds the durations of another one."""
        self.count += other.count
        self.sum += other.sum
        self.max = max(self.max, other.max)
        self._counts = array("Q", map(int.__add__, self._counts, other._counts))  # noqa: SLF001 - of its own class

    def summary(self) -> dict[str, float | int | None]:
        """In milliseconds, for JSON; null without any."""
        shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p99_9_ms": 0.999}
        figures = {name: _ms(self.percentile(share)) for name, share in shares.items()}
        mean = self.sum / self.count if self.count else math.nan
        return {"count": self.count, "mean_ms": _ms(mean), **figures, "max_ms": _ms(self.max)}


def _ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds * 1000, 3)
