"""The breaker of one engine: when it opens, when it is half-open, and when it closes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.resilience.breaker import KV_USAGE_TTL, BreakerPolicy, BreakerState, EngineBreaker

LIMITS = BreakerPolicy(open_above=0.88, close_below=0.79, failures=3, cooldown=10)
NEW = EngineBreaker()
NOW = 1000.0


def failing(times: int, breaker: EngineBreaker = NEW) -> EngineBreaker:
    for _ in range(times):
        breaker = breaker.on_failure(NOW, LIMITS)
    return breaker


def measured(*usages: float | None) -> EngineBreaker:
    breaker = NEW
    for usage in usages:
        breaker = breaker.on_kv_usage(usage, NOW, LIMITS)
    return breaker


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "state"),
    [(2, BreakerState.CLOSED), (3, BreakerState.OPEN), (4, BreakerState.OPEN), (100, BreakerState.OPEN)],
)
def test_enough_consecutive_failures_open_it(times: int, state: BreakerState) -> None:
    assert failing(times).state(NOW) is state


def test_a_success_resets_the_count_of_failures() -> None:
    breaker = failing(2, failing(2).on_success())
    assert breaker.state(NOW) is BreakerState.CLOSED
    assert failing(1, breaker).state(NOW) is BreakerState.OPEN


@pytest.mark.parametrize(
    ("after", "state"),
    [(0, BreakerState.OPEN), (9.9, BreakerState.OPEN), (10, BreakerState.HALF_OPEN), (1e6, BreakerState.HALF_OPEN)],
)
def test_it_is_half_open_after_the_cooldown(after: float, state: BreakerState) -> None:
    assert failing(3).state(NOW + after) is state


def test_the_success_of_the_probe_closes_it_and_its_failure_opens_it_for_another_cooldown() -> None:
    half_open, later = failing(3), NOW + 11
    assert half_open.on_success(probe=True) == NEW
    again = half_open.on_failure(later, LIMITS, probe=True)
    assert again.state(later + 9.9) is BreakerState.OPEN
    assert again.state(later + 10) is BreakerState.HALF_OPEN


@pytest.mark.parametrize("later", [NOW, NOW + 11])
def test_late_results_of_requests_from_before_it_opened_change_nothing(later: float) -> None:
    opened = failing(3)
    assert opened.on_success() == opened
    assert opened.on_failure(later, LIMITS) == opened


def test_an_engine_that_recovers_need_not_wait() -> None:
    assert failing(3).on_recovered(NOW).state(NOW) is BreakerState.HALF_OPEN
    assert NEW.on_recovered(NOW) is NEW
    assert failing(3).on_recovered(NOW + 20) == failing(3)


# -- pressure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usages", "opened"),
    [
        ([0.0], False), ([0.8799], False), ([0.88], True), ([1.0], True),
        ([0.87, 0.80, 0.87], False),
        ([0.88, 0.87, 0.79], True), ([0.88, 0.7899], False), ([0.88, 0.7, 0.87], False),
        ([None], False), ([0.88, None], True),
    ],
)  # fmt: skip
def test_it_opens_above_one_threshold_and_closes_below_another(usages: list[float | None], opened: bool) -> None:
    assert measured(*usages).state(NOW) is (BreakerState.OPEN if opened else BreakerState.CLOSED)
    assert measured(*usages).under_pressure(NOW) is opened


def test_a_usage_that_is_no_longer_measured_expires() -> None:
    full = measured(0.95)
    assert full.state(NOW + KV_USAGE_TTL - 0.1) is BreakerState.OPEN
    assert full.state(NOW + KV_USAGE_TTL) is BreakerState.CLOSED
    assert full.on_kv_usage(None, NOW + KV_USAGE_TTL, LIMITS) == NEW
    assert full.on_kv_usage(0.8, NOW + KV_USAGE_TTL, LIMITS) == NEW, "an old measurement keeps nothing open"


def test_the_two_reasons_are_independent() -> None:
    both = failing(3, measured(0.95))
    assert both.on_success(probe=True).state(NOW) is BreakerState.OPEN
    assert both.on_kv_usage(0.1, NOW, LIMITS).state(NOW) is BreakerState.OPEN
    assert both.on_kv_usage(0.1, NOW, LIMITS).on_success(probe=True) == NEW


# -- merged states ----------------------------------------------------------------------------------------------------


def test_the_state_of_another_router_counts_except_for_its_count_of_failures() -> None:
    assert NEW.merge(failing(3), NOW, LIMITS).state(NOW) is BreakerState.OPEN
    assert failing(3).merge(NEW, NOW, LIMITS) == NEW
    assert failing(2).merge(EngineBreaker(failures=0), NOW, LIMITS) == failing(2)
    assert NEW.merge(failing(2), NOW, LIMITS) == NEW


@given(until=st.floats(0, 1e12), pressed=st.floats(0, 1e12))
def test_a_wrong_clock_elsewhere_keeps_nothing_open_for_longer(until: float, pressed: float) -> None:
    breaker = NEW.merge(EngineBreaker(until=until, pressed=pressed), NOW, LIMITS)
    assert breaker.state(NOW + 10) is not BreakerState.OPEN


def test_only_opening_and_closing_are_published() -> None:
    assert not failing(2).should_publish(NEW)
    assert failing(3).should_publish(NEW)
    assert NEW.should_publish(failing(3))
    assert measured(0.9).should_publish(NEW)
    assert not measured(0.9).on_kv_usage(0.9, NOW + 2, LIMITS).should_publish(measured(0.9))


@given(st.lists(st.sampled_from(["failed", "succeeded", "probe failed", "probe succeeded", "full", "empty", "wait"])))
def test_in_any_sequence_it_never_stays_open_for_longer_than_a_cooldown_or_a_reading(happened: list[str]) -> None:
    breaker, now = NEW, NOW
    for event in happened:
        match event:
            case "failed" | "probe failed":
                breaker = breaker.on_failure(now, LIMITS, probe=event.startswith("probe"))
            case "succeeded" | "probe succeeded":
                breaker = breaker.on_success(probe=event.startswith("probe"))
            case "full" | "empty":
                breaker = breaker.on_kv_usage(0.95 if event == "full" else 0.1, now, LIMITS)
            case _:
                now += 4
        assert breaker.state(now + max(LIMITS.cooldown, KV_USAGE_TTL)) is not BreakerState.OPEN
        assert breaker.failures < LIMITS.failures
