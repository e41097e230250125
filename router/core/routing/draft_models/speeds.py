"""Estimates of speeds: geometric means with standard errors. See DecayingSpeeds."""

from math import hypot, log
from typing import Final, NamedTuple

HALF_LIFE: Final = 600.0
"""Seconds after which a measurement has half its weight."""

MIN_GENERATIONS: Final = 12.0
"""Total weight of generations from which on a speed is known; a new generation has weight 1."""

MAX_GAP: Final = 300.0
"""Seconds without a measurement after which a speed by which engines are chosen is unknown.

An engine that was slow gets no requests that could show that it is not any more; the weight of thousands of them lasts
for more than an hour.
"""

_STANDARD_ERRORS: Final = 2.0  # by how many standard errors speeds must differ, so that it is not chance


class SpeedEstimate(NamedTuple):
    """The mean of logarithms of speeds, and its standard error."""

    mean: float
    standard_error: float

    def is_clearly_above(self, other: "SpeedEstimate", ratio: float) -> bool:
        """Whether it is above the other by at least this ratio, and not by chance."""
        difference = self.mean - other.mean
        return difference >= log(ratio) and difference >= _STANDARD_ERRORS * hypot(
            self.standard_error, other.standard_error
        )

    def times(self, factor: float, standard_error: float) -> "SpeedEstimate":
        return SpeedEstimate(self.mean + log(factor), hypot(self.standard_error, standard_error / factor))
