"""Percentiles of durations, in bounded memory."""

import math
from random import Random

import pytest

from benchmarks.latency_histogram import LatencyHistogram


def histogram_of(*seconds: float) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for each in seconds:
        histogram.add(each)
    return histogram


def test_percentiles_are_at_most_a_percent_too_high() -> None:
    rng = Random(1)
    values = sorted(rng.lognormvariate(-5, 2) for _ in range(10_000))
    histogram = histogram_of(*values)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = values[math.ceil(share * 10_000 - 1e-9) - 1]
        assert exact <= histogram.percentile(share) * (1 + 1e-9) <= exact * 1.0101


def test_a_percentile_is_the_nearest_rank() -> None:
    histogram = histogram_of(*(number / 100 for number in range(1, 101)))
    assert histogram.percentile(0.99) == pytest.approx(0.99, rel=0.011)
    assert histogram.percentile(1.0) == 1.0
    assert histogram.percentile(0.0) == pytest.approx(0.01, rel=0.011)


def test_one_duration_is_every_percentile() -> None:
    assert histogram_of(0.25).percentile(0.5) == 0.25
    assert histogram_of(0.25).percentile(0.999) == 0.25


def test_without_durations_percentiles_are_unknown() -> None:
    histogram = LatencyHistogram()
    assert math.isnan(histogram.percentile(0.5))
    assert histogram.summary() == {
        "count": 0, "mean_ms": None, "p50_ms": None, "p90_ms": None, "p99_ms": None, "p99_9_ms": None, "max_ms": 0.0,
    }  # fmt: skip


def test_durations_beyond_the_buckets_count_in_the_first_and_the_last() -> None:
    histogram = histogram_of(0.0, 1e-9, 1e6)
    assert histogram.percentile(0.5) == pytest.approx(1e-6)
    assert histogram.percentile(1.0) == 1e6


def test_histograms_are_merged() -> None:
    merged = histogram_of(0.1, 0.2)
    merged.include(histogram_of(0.3, 0.4))
    assert (merged.count, merged.max) == (4, 0.4)
    assert merged.sum == pytest.approx(1.0)
    assert merged.percentile(0.75) == pytest.approx(0.3, rel=0.011)
