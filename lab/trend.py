"""Whether a quantity grows: a straight line through samples, with a confidence interval of its slope."""

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import NormalDist, fmean
from typing import NamedTuple

HOUR = 3600.0  # seconds


class Sample(NamedTuple):
    """`at`: seconds since the start."""

    at: float
    value: float


class Trend(NamedTuple):
    """Growth per hour; `low` and `high` are the bounds of its 95 % confidence interval, infinite if unknown."""

    per_hour: float
    low: float
    high: float


class Verdict(StrEnum):
    """UNKNOWN: the interval contains the limit, so longer measurements are needed."""

    FLAT = "flat"
    GROWING = "growing"
    UNKNOWN = "unknown"


def block_means(samples: Sequence[Sample], block: float) -> list[Sample]:
    """The means of consecutive blocks of `block` seconds.

    Neighbouring samples of a process are alike; taken as independent, they would make the interval far too narrow.
    """
    blocks: dict[int, list[Sample]] = {}
    for sample in samples:
        blocks.setdefault(int(sample.at // block), []).append(sample)
    return [
        Sample(fmean(sample.at for sample in group), fmean(sample.value for sample in group))
        for _, group in sorted(blocks.items())
    ]


def fit_trend(samples: Sequence[Sample]) -> Trend:
    """Ordinary least squares; unknown with fewer than three samples or all at one time."""
    if not samples:
        return Trend(math.nan, -math.inf, math.inf)
    count, middle, mean = len(samples), fmean(at for at, _ in samples), fmean(value for _, value in samples)
    spread = sum((at - middle) ** 2 for at, _ in samples)
    if count < 3 or spread == 0:
        return Trend(math.nan, -math.inf, math.inf)
    slope = sum((at - middle) * (value - mean) for at, value in samples) / spread
    residues = sum((value - mean - slope * (at - middle)) ** 2 for at, value in samples)
    error = math.sqrt(residues / (count - 2) / spread)
    margin = t_quantile(0.975, count - 2) * error
    return Trend(slope * HOUR, (slope - margin) * HOUR, (slope + margin) * HOUR)


def t_quantile(share: float, degrees: int) -> float:
    """A quantile of Student's t distribution, exact for 1 and 2 degrees of freedom.

    Otherwise the expansion of Abramowitz and Stegun (26.7.5); below 1 % off for 3 degrees and a share of 0.975.
    """
    if degrees == 1:
        return math.tan(math.pi * (share - 0.5))
    if degrees == 2:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def judge(trend: Trend, limit: float) -> Verdict:
    """`limit`: growth per hour that counts as flat."""
    if trend.high <= limit:
        return Verdict.FLAT
    return Verdict.GROWING if trend.low > limit else Verdict.UNKNOWN
