"""The breaker of one engine: when it opens, when it lets one request through, and when it closes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.resilience.breaker import READING_LASTS, Breaker, Limits, State

LIMITS = Limits(open_above=0.88, close_below=0.79, failures=3, cooldown=10)
NEW = Breaker()
NOW = 1000.0


def failing(times: int, breaker: Breaker = NEW) -> Breaker:
    for _ in range(times):
        breaker = breaker.failed(NOW, LIMITS)
    return breaker


def measured(*usages: float | None) -> Breaker:
    breaker = NEW
    for usage in usages:
        breaker = breaker.measured(usage, NOW, LIMITS)
    return breaker


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "state"), [(2, State.CLOSED), (3, State.OPEN), (4, State.OPEN), (100, State.OPEN)])
def test_so_many_failures_in_a_row_open_it(times: int, state: State) -> None:
    assert failing(times).state(NOW) is state


def test_a_success_in_between_makes_up_for_the_failures_before() -> None:
    breaker = failing(2, failing(2).succeeded())
    assert breaker.state(NOW) is State.CLOSED
    assert failing(1, breaker).state(NOW) is State.OPEN


@pytest.mark.parametrize(
    ("after", "state"), [(0, State.OPEN), (9.9, State.OPEN), (10, State.HALF_OPEN), (1e6, State.HALF_OPEN)]
)
def test_it_is_half_open_once_the_cooldown_is_over(after: float, state: State) -> None:
    assert failing(3).state(NOW + after) is state


def test_the_success_of_the_probe_closes_it_and_its_failure_opens_it_for_another_cooldown() -> None:
    half_open, later = failing(3), NOW + 11
    assert half_open.succeeded(probe=True) == NEW
    again = half_open.failed(later, LIMITS, probe=True)
    assert again.state(later + 9.9) is State.OPEN
    assert again.state(later + 10) is State.HALF_OPEN


@pytest.mark.parametrize("later", [NOW, NOW + 11])
def test_what_comes_late_of_requests_from_before_it_opened_changes_nothing(later: float) -> None:
    opened = failing(3)
    assert opened.succeeded() == opened
    assert opened.failed(later, LIMITS) == opened


def test_an_engine_that_had_gone_and_is_back_need_not_wait() -> None:
    assert failing(3).revived(NOW).state(NOW) is State.HALF_OPEN
    assert NEW.revived(NOW) is NEW
    assert failing(3).revived(NOW + 20) == failing(3)


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
def test_it_opens_at_one_mark_and_closes_below_another(usages: list[float | None], opened: bool) -> None:
    assert measured(*usages).state(NOW) is (State.OPEN if opened else State.CLOSED)
    assert measured(*usages).under_pressure(NOW) is opened


def test_what_is_no_longer_measured_is_no_pressure_after_a_while() -> None:
    full = measured(0.95)
    assert full.state(NOW + READING_LASTS - 0.1) is State.OPEN
    assert full.state(NOW + READING_LASTS) is State.CLOSED
    assert full.measured(None, NOW + READING_LASTS, LIMITS) == NEW
    assert full.measured(0.8, NOW + READING_LASTS, LIMITS) == NEW, "an old reading keeps nothing open"


def test_the_two_reasons_stand_beside_each_other() -> None:
    both = failing(3, measured(0.95))
    assert both.succeeded(probe=True).state(NOW) is State.OPEN
    assert both.measured(0.1, NOW, LIMITS).state(NOW) is State.OPEN
    assert both.measured(0.1, NOW, LIMITS).succeeded(probe=True) == NEW


# -- what others say --------------------------------------------------------------------------------------------------


def test_what_another_router_says_counts_but_for_its_count_of_failures() -> None:
    assert NEW.heard(failing(3), NOW, LIMITS).state(NOW) is State.OPEN
    assert failing(3).heard(NEW, NOW, LIMITS) == NEW
    assert failing(2).heard(Breaker(failures=0), NOW, LIMITS) == failing(2)
    assert NEW.heard(failing(2), NOW, LIMITS) == NEW


@given(until=st.floats(0, 1e12), pressed=st.floats(0, 1e12))
def test_a_clock_that_is_wrong_elsewhere_keeps_nothing_open_for_longer(until: float, pressed: float) -> None:
    breaker = NEW.heard(Breaker(until=until, pressed=pressed), NOW, LIMITS)
    assert breaker.state(NOW + 10) is not State.OPEN


def test_only_what_opens_or_closes_is_told() -> None:
    assert not failing(2).tells(NEW)
    assert failing(3).tells(NEW)
    assert NEW.tells(failing(3))
    assert measured(0.9).tells(NEW)
    assert not measured(0.9).measured(0.9, NOW + 2, LIMITS).tells(measured(0.9))


@given(st.lists(st.sampled_from(["failed", "succeeded", "probe failed", "probe succeeded", "full", "empty", "wait"])))
def test_whatever_happens_it_never_opens_for_longer_than_a_cooldown_or_a_reading(happened: list[str]) -> None:
    breaker, now = NEW, NOW
    for event in happened:
        match event:
            case "failed" | "probe failed":
                breaker = breaker.failed(now, LIMITS, probe=event.startswith("probe"))
            case "succeeded" | "probe succeeded":
                breaker = breaker.succeeded(probe=event.startswith("probe"))
            case "full" | "empty":
                breaker = breaker.measured(0.95 if event == "full" else 0.1, now, LIMITS)
            case _:
                now += 4
        assert breaker.state(now + max(LIMITS.cooldown, READING_LASTS)) is not State.OPEN
        assert breaker.failures < LIMITS.failures
