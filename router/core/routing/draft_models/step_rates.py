"""Measures the steps per second of each engine at each load, and compares an engine with the same without its draft.

Theory. A draft multiplies the tokens of a step, and makes the step longer. How much longer depends on the number of
requests in the step: with few, the engine waits for memory, and checking more tokens costs little; with many, it
computes at its limit. So both engines must be measured at the same load.

Loads are counted in powers of two. A draft that does not pay at some load does not at a higher one either, and one that
does also pays at a lower one.
"""

from typing import Final

from router.core.routing.draft_models.acceptance import TokensPerStep
from router.core.routing.draft_models.decaying_speeds import DecayingSpeeds
from router.core.routing.draft_models.speeds import MAX_GAP, SpeedEstimate

MAX_LEVEL: Final = 10
"""The level of all loads from 512 on."""

# Seconds. The cost of a step at a load is that of the machine and the models, which change rarely.
_HALF_LIFE_AT_A_LOAD: Final = 3600.0

CLOSEST_LEVELS: Final = [
    sorted(range(1, MAX_LEVEL + 1), key=lambda other: abs(other - level)) for level in range(MAX_LEVEL + 1)
]
"""By level: all levels, the closest first."""


def load_level(load: float) -> int:
    """The number of bits of a number of requests."""
    return min(max(1, round(load)).bit_length(), MAX_LEVEL)


class StepRates:
    """Steps per second of one request, by family and load. Its size is bounded by the number of families."""

    def __init__(self) -> None:
        self._rates: dict[str, DecayingSpeeds] = {}  # at any load
        self._recent_rates_by_level: dict[tuple[str, int], DecayingSpeeds] = {}
        self._rates_by_level: dict[tuple[str, int], DecayingSpeeds] = {}

    def add(self, family: str, level: int, steps_per_second: float, now: float) -> None:
        if (rates := self._rates.get(family)) is None:
            rates = self._rates[family] = DecayingSpeeds()
        rates.add(steps_per_second, now)
        if (recent := self._recent_rates_by_level.get((family, level))) is None:
            recent = self._recent_rates_by_level[family, level] = DecayingSpeeds(max_gap=MAX_GAP)
        recent.add(steps_per_second, now)
        if (at_level := self._rates_by_level.get((family, level))) is None:
            at_level = self._rates_by_level[family, level] = DecayingSpeeds(_HALF_LIFE_AT_A_LOAD)
        at_level.add(steps_per_second, now)

    def estimate(self, family: str, now: float) -> SpeedEstimate | None:
        """At whatever load the family had."""
        rates = self._rates.get(family)
        return rates.estimate(now) if rates is not None else None

    def recent_estimate(self, family: str, level: int, now: float) -> SpeedEstimate | None:
        """At this load, as of the last minutes: a machine may have become slower since."""
        rates = self._recent_rates_by_level.get((family, level))
        return rates.estimate(now) if rates is not None else None

    def is_faster(
        self, family: str, baseline: str, tokens_per_step: TokensPerStep, level: int, now: float
    ) -> bool | None:
        """Whether a family is faster at this load than `baseline`, the same engine without its draft; None: unknown."""
        # The closest load at which both are measured counts most.
        for measured in CLOSEST_LEVELS[level]:
            if (rate := self._estimate_at(family, measured, now)) is None:
                continue
            if (without := self._estimate_at(baseline, measured, now)) is None:
                continue
            speed = rate.times(tokens_per_step.mean, tokens_per_step.standard_error)
            if measured <= level and without.is_clearly_above(speed, 1.0):
                return False
            if measured >= level and speed.is_clearly_above(without, 1.0):
                return True
        return None

    def _estimate_at(self, family: str, level: int, now: float) -> SpeedEstimate | None:
        rates = self._rates_by_level.get((family, level))
        return rates.estimate(now) if rates is not None else None
