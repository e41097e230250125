"""What two readings of an engine's metrics say about the time between them."""

import pytest

from engines.watchdog.observation import Observation, observe
from engines.watchdog.scrape import Scrape


def reading(at: float, **values: float) -> Scrape:
    return Scrape(at=at, healthy=True, **values)


def test_counters_become_rates_and_gauges_stay() -> None:
    before = reading(10, generated=100, prefilled=0, preemptions=1, finished=4, failed=0, first_tokens=2)
    after = reading(
        15, generated=600, prefilled=50, preemptions=2, finished=8, failed=1, first_tokens=4, running=3, waiting=2
    )
    seen = observe(before, after)
    assert seen == Observation(
        healthy=True, running=3, waiting=2, generated=100, prefilled=10, preemptions=0.2, error_rate=0.25
    )


def test_the_hit_rate_and_the_time_to_the_first_token_are_those_of_this_time() -> None:
    before = reading(0, prefix_hits=90, prefix_queries=100, first_tokens=10, first_token_seconds=1)
    after = reading(5, prefix_hits=91, prefix_queries=104, first_tokens=12, first_token_seconds=4)
    seen = observe(before, after)
    assert (seen.prefix_cache_hit_rate, seen.time_to_first_token) == (0.25, 1.5)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, reading(5, generated=10, finished=1, failed=1)),
        (reading(0), reading(5, generated=10, finished=1, failed=1)),
        (reading(0, generated=10, finished=1, failed=1), reading(5)),
        (reading(5, generated=1, finished=0, failed=0), reading(5, generated=10, finished=0, failed=0)),
    ],
    ids=["the first reading", "an unreadable page before", "an unreadable page now", "no time between"],
)
def test_what_is_not_known_is_unknown_and_not_zero(before: Scrape | None, after: Scrape) -> None:
    seen = observe(before, after)
    assert (seen.generated, seen.error_rate, seen.time_to_first_token) == (None, None, None)


def test_counters_that_went_back_are_those_of_another_process() -> None:
    seen = observe(reading(0, generated=500, preemptions=9), reading(5, generated=20, preemptions=0, waiting=1))
    assert seen == Observation(healthy=True, restarted=True, waiting=1)


def test_an_unhealthy_engine_is_unhealthy() -> None:
    assert observe(reading(0, generated=1), Scrape(at=5, healthy=False)) == Observation(healthy=False)
