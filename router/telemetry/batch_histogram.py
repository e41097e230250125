"""A histogram of prometheus_client that takes many values at once."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from prometheus_client import Histogram


class BatchHistogram(Histogram):
    """A histogram that observes many values at once."""

    def observe_many(self, values: list[float]) -> None:
        values.sort()
        self._sum.inc(sum(values))
        counted = 0
        # prometheus_client keeps a count for each bucket alone, and adds them up when it renders.
        while counted < len(values):
            index = bisect_left(self._upper_bounds, values[counted])
            below = bisect_right(values, self._upper_bounds[index])
            self._buckets[index].inc(below - counted)
            counted = below

    def observe_weighted(self, values: Sequence[tuple[float, int]]) -> None:
        """Observes each value as often as its weight, the second number, says."""
        self._sum.inc(sum(value * weight for value, weight in values))
        weights = [0] * len(self._buckets)
        for value, weight in values:
            weights[bisect_left(self._upper_bounds, value)] += weight
        for bucket, weight in zip(self._buckets, weights, strict=True):
            if weight:
                bucket.inc(weight)
