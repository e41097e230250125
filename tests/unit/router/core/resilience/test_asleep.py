"""A model sleeps if its engines are down, and one that an operator wants could start."""

import pytest

from router.core.resilience.asleep import (
    DEFAULT_START,
    MAX_ADVISED_RETRY_AFTER,
    MAX_GAP,
    EngineFacts,
    StartWait,
    is_asleep,
    start_retry_after,
)
from router.core.resilience.breaker import BreakerState

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN


def facts(up: bool | None = False, *, drained: bool = False, breaker: BreakerState = CLOSED) -> EngineFacts:
    return EngineFacts(up, drained, breaker)


@pytest.mark.parametrize(
    ("engines", "asleep"),
    [
        ([], True),  # all announced ones are withdrawn
        ([facts()], True),
        ([facts(), facts(breaker=HALF_OPEN)], True),
        ([facts(up=True)], False),
        ([facts(), facts(up=True)], False),
        ([facts(up=None)], False),  # nobody knows yet
        ([facts(breaker=OPEN)], False),  # it has failed
        ([facts(drained=True)], False),  # nobody wants it
        ([facts(drained=True), facts()], True),
        ([facts(up=True, drained=True), facts()], True),
        ([facts(drained=True, breaker=OPEN), facts()], True),
    ],
)
def test_a_model_is_asleep_while_only_a_start_can_help(engines: list[EngineFacts], asleep: bool) -> None:
    assert is_asleep(engines) is asleep


def test_the_retry_after_is_the_median_start_less_the_time_that_has_passed() -> None:
    assert start_retry_after([40.0, 20.0, 30.0], 12.5) == 18
    assert start_retry_after([40.0, 20.0, 30.0], 100.0) == 1
    assert start_retry_after([400.0], 0.0) == MAX_ADVISED_RETRY_AFTER
    assert start_retry_after([], 0.0) == DEFAULT_START


def test_a_request_soon_after_the_last_one_left_waits_for_the_same_start() -> None:
    assert StartWait(0.0).continues(1000.0)
    assert StartWait(0.0, last_left=10.0).continues(10.0 + MAX_GAP)
    assert not StartWait(0.0, last_left=10.0).continues(10.1 + MAX_GAP)
