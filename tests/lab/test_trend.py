"""Whether samples grow."""

import math
from random import Random

import pytest

from lab.trend import HOUR, Sample, Trend, Verdict, block_means, fit_trend, judge, t_quantile


def test_the_slope_of_a_line_is_found_exactly() -> None:
    trend = fit_trend([Sample(at, 100 + at * 12 / HOUR) for at in range(0, 600, 10)])
    assert trend.per_hour == pytest.approx(12)
    assert trend.low == pytest.approx(12)
    assert trend.high == pytest.approx(12)


def test_the_interval_contains_the_true_slope_in_95_percent_of_the_cases() -> None:
    rng, inside = Random(1), 0
    for _ in range(1000):
        trend = fit_trend([Sample(at, 5 * at + rng.gauss(0, 3)) for at in range(10)])
        inside += trend.low <= 5 * HOUR <= trend.high
    assert inside / 1000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("samples", [[], [Sample(0, 1)], [Sample(0, 1), Sample(1, 2)], [Sample(3, 1)] * 5])
def test_too_few_samples_tell_nothing(samples: list[Sample]) -> None:
    trend = fit_trend(samples)
    assert math.isnan(trend.per_hour)
    assert judge(trend, 1.0) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("degrees", "exact"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_quantiles_of_students_t(degrees: int, exact: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(exact, rel=0.01)


def test_samples_are_averaged_in_blocks() -> None:
    samples = [Sample(at, at % 20) for at in range(0, 120, 10)]
    assert block_means(samples, 60) == [Sample(25, 5), Sample(85, 5)]


@pytest.mark.parametrize(
    ("trend", "verdict"),
    [
        (Trend(1, -2, 4), Verdict.FLAT),
        (Trend(-30, -40, -20), Verdict.FLAT),
        (Trend(4, -2, 10), Verdict.UNKNOWN),
        (Trend(20, 6, 34), Verdict.GROWING),
    ],
)
def test_growth_is_judged_by_its_interval(trend: Trend, verdict: Verdict) -> None:
    assert judge(trend, 5.0) is verdict
