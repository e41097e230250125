"""Estimates speeds by the clock: decaying geometric means with standard errors."""

from math import inf, log, sqrt

from router.core.routing.draft_models.speeds import HALF_LIFE, MIN_GENERATIONS, SpeedEstimate


class DecayingSpeeds:
    """Decaying statistics of speeds, as logarithms: a stalled generation must not outweigh all others.

    `now` is in seconds of one monotonic clock, and so are `half_life` and `max_gap`: without a measurement for longer,
    all earlier ones are forgotten.
    """

    def __init__(self, half_life: float = HALF_LIFE, max_gap: float = inf) -> None:
        self._half_life = half_life
        self._max_gap = max_gap
        self._count = self._sum = self._squares = 0.0
        self._updated_at = 0.0

    def add(self, speed: float, now: float) -> None:
        value, remaining = log(speed), self._remaining_share(now)
        self._count = self._count * remaining + 1.0
        self._sum = self._sum * remaining + value
        self._squares = self._squares * remaining + value * value
        self._updated_at = now

    def count(self, now: float) -> float:
        return self._count * self._remaining_share(now)

    def estimate(self, now: float) -> SpeedEstimate | None:
        count = self.count(now)
        if count < MIN_GENERATIONS:
            return None
        # The three sums decay alike, so their ratios need no decay. max: rounding can make the variance negative.
        mean = self._sum / self._count
        return SpeedEstimate(mean, sqrt(max(0.0, self._squares / self._count - mean * mean) / count))

    def _remaining_share(self, now: float) -> float:
        gap = max(0.0, now - self._updated_at)
        return float(0.5 ** (gap / self._half_life)) if gap <= self._max_gap else 0.0
