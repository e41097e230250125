"""Which attempt follows a failed one, when, and how many attempts there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.resilience.retry import (
    CONTINUATIONS_PER_SECOND,
    MAX_ATTEMPTS,
    MAX_RETRY_AFTER,
    MAX_WAIT,
    ScheduledAttempt,
    classify_failure,
    parse_retry_after,
)
from router.core.resilience.retry_budget import RetryBudget
from router.core.resilience.retry_schedule import RetrySchedule, backoff

# -- the next engine --------------------------------------------------------------------------------------------------


def attempts_of(
    engines: list[str], *reasons: str, random: float = 0.0, retry_after: float | None = None
) -> list[tuple[str, float]]:
    """The engines tried and their delays if each attempt fails with the next reason; the last reason repeats."""
    schedule, attempts, now, remaining = RetrySchedule(engines), [], 0.0, list(reasons)
    while (attempt := schedule.next_attempt(now, random)) is not None:
        engine = attempt.engines[0]
        attempts.append((engine, attempt.wait))
        now += attempt.wait
        schedule.mark_tried(engine)
        schedule.on_failure(engine, remaining.pop(0) if len(remaining) > 1 else remaining[0], retry_after, now)
    return attempts


def engines_tried(engines: list[str], *reasons: str, retry_after: float | None = None) -> str:
    return "".join(engine for engine, _ in attempts_of(engines, *reasons, retry_after=retry_after))


def waits(engines: list[str], reason: str, *, random: float, retry_after: float | None = None) -> list[float]:
    return [wait for _, wait in attempts_of(engines, reason, random=random, retry_after=retry_after)]


@pytest.mark.parametrize(
    ("engines", "reasons", "tried"),
    [
        ("a", ["status-500"], "aaa"),
        ("ab", ["status-500"], "aba"),
        ("abc", ["reset"], "abc"),
        ("abcdef", ["error-frame"], "abc"),
        ("abcdef", ["connect"], "abcdef"),  # no engine has received the request, so all are tried
        ("a", ["connect"], "a"),
        ("abcdef", ["timeout"], "ab"),
        ("a", ["timeout"], "a"),
        ("abcdef", ["slow"], "ab"),
        ("abcdef", ["lost"], "abc"),
        ("a", ["lost"], "a"),
        ("ab", ["timeout", "broken-off"], "abb"),
        ("ab", ["status-404"], "ab"),
        ("ab", ["connect", "malformed"], "abbb"),
        ("ab", ["diverged", "timeout"], "aba"),
        ("a", ["refused"], "a"),
        ("", ["connect"], ""),
    ],
)
def test_another_engine_is_tried_first_and_the_same_one_only_where_that_may_help(
    engines: str, reasons: list[str], tried: str
) -> None:
    assert engines_tried(list(engines), *reasons) == tried


def test_another_engine_is_tried_at_once_and_the_same_one_after_a_wait() -> None:
    assert waits(["a", "b"], "reset", random=1.0) == [0, 0, 0.1]
    assert waits(["a"], "reset", random=1.0) == [0, 0.1, 0.2]
    assert waits(["a"], "reset", random=0.5) == [0, 0.05, 0.1]


@pytest.mark.parametrize("reason", ["status-429", "status-503"])
def test_an_engine_is_not_retried_before_its_retry_after(reason: str) -> None:
    assert waits(["a"], reason, random=0.5, retry_after=1) == pytest.approx([0, 1.05, 1.1])
    assert engines_tried(["a", "b"], reason, retry_after=MAX_WAIT + 0.1) == "ab", "no wait is longer"


def test_any_untried_engine_may_be_the_next() -> None:
    schedule = RetrySchedule(["a", "b", "c"])
    assert schedule.next_attempt(0, 0) == ScheduledAttempt(("a", "b", "c"), 0)
    schedule.mark_tried("b")
    schedule.on_failure("b", "reset", None, 0)
    assert schedule.next_attempt(0, 0) == ScheduledAttempt(("a", "c"), 0)
    schedule.mark_tried("a")  # skipped, as its breaker is open
    assert schedule.next_attempt(0, 0) == ScheduledAttempt(("c",), 0)


@given(st.integers(0, 2000), st.floats(0, 1))
def test_a_wait_is_anything_from_zero_to_its_maximum(number: int, random: float) -> None:
    wait = backoff(min(number, 1000), random)
    assert 0 <= wait <= min(MAX_WAIT, 0.1 * 2.0 ** min(number, 1000))
    assert backoff(3, 0.0) == 0
    assert backoff(3, 1.0) == pytest.approx(0.8)


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.lists(st.sampled_from(["connect", "timeout", "reset", "status-429", "status-500"]), min_size=1),
    st.floats(0, 1),
)
def test_every_request_runs_out_of_attempts(engines: list[str], reasons: list[str], random: float) -> None:
    attempts = attempts_of(engines, *reasons, random=random)
    assert len(attempts) <= len(engines) + MAX_ATTEMPTS
    assert all(0 <= wait <= MAX_WAIT for _, wait in attempts)


# -- what a failure means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason",
    [
        "connect",
        "timeout",
        "lost",
        "reset",
        "broken-off",
        "error-frame",
        "malformed",
        "status-401",
        "status-424",
        "status-500",
        "status-502",
    ],
)
def test_failures_of_the_engine_count_against_it(reason: str) -> None:
    assert classify_failure(reason, None).counts_for_breaker


@pytest.mark.parametrize("reason", ["status-400", "status-403", "status-404", "status-408", "status-429", "status-301"])
def test_a_4xx_never_counts(reason: str) -> None:
    assert not classify_failure(reason, None).counts_for_breaker
    assert not classify_failure(reason, 3.0).counts_for_breaker


@pytest.mark.parametrize("reason", ["refused", "too-large", "status-404", "status-405", "status-501"])
def test_client_errors_and_the_routers_own_limits_neither_count_nor_use_the_retry_budget(reason: str) -> None:
    failure = classify_failure(reason, None)
    assert (failure.counts_for_breaker, failure.engine_busy, failure.may_retry_engine, failure.uses_retry_budget) == (
        False,
        False,
        False,
        False,
    )
    assert attempts_of(list("abcdef"), reason) == [(name, 0.0) for name in "abc"], (
        "engines that lack it are tried three times"
    )


def test_a_timeout_at_an_engine_that_works_does_not_count_and_uses_the_retry_budget() -> None:
    failure = classify_failure("slow", None)
    assert (failure.counts_for_breaker, failure.may_retry_engine, failure.uses_retry_budget) == (False, False, True)


def test_a_503_counts_unless_it_has_a_retry_after() -> None:
    assert classify_failure("status-503", None).counts_for_breaker
    assert not classify_failure("status-503", 2.0).counts_for_breaker
    assert classify_failure("status-503", 2.0).engine_busy


# -- the budget -------------------------------------------------------------------------------------------------------


def taken(budget: RetryBudget, now: float, tries: int = 100_000) -> int:
    count = 0
    while count < tries and budget.try_acquire(now):
        count += 1
    return count


def test_a_new_router_has_a_few_retries() -> None:
    assert taken(RetryBudget(0), 0) == RetryBudget.MIN_RETRIES_PER_SECOND * RetryBudget.WINDOW


def test_a_fifth_of_the_requests_may_be_retried() -> None:
    budget = RetryBudget(0)
    taken(budget, 0)
    for _ in range(1000):
        budget.on_request(0)
    assert taken(budget, 0) in (199, 200)


def test_some_retries_are_added_every_second() -> None:
    budget = RetryBudget(0)
    taken(budget, 0)
    assert 4 <= taken(budget, 1) <= 5
    assert taken(budget, 1) == 0


def test_unused_retries_of_a_calm_hour_decay() -> None:
    budget = RetryBudget(0)
    for _ in range(1_000_000):
        budget.on_request(0)
    assert taken(budget, 3600) == pytest.approx(RetryBudget.MIN_RETRIES_PER_SECOND * RetryBudget.WINDOW, abs=1)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans())))
def test_there_are_never_more_retries_than_the_ratio_and_the_minimum(steps: list[tuple[float, bool]]) -> None:
    budget, now, requests, retried = RetryBudget(0), 0.0, 0, 0
    for passed, is_request in steps:
        now += passed
        if is_request:
            requests += 1
            budget.on_request(now)
        else:
            retried += budget.try_acquire(now)
        floor = RetryBudget.MIN_RETRIES_PER_SECOND * (now + RetryBudget.WINDOW)
        assert retried <= RetryBudget.RETRY_RATIO * requests + floor + 1e-6


# -- Retry-After ------------------------------------------------------------------------------------------------------

AT = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("7", 7), (" 7 ", 7), ("120", MAX_RETRY_AFTER), ("9" * 60, MAX_RETRY_AFTER),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10), ("Sun, 06 Nov 1994 08:49:27 GMT", 0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10), ("Sun Nov  6 08:49:47 1994", 10),
        ("Sun, 06 Nov 2094 08:49:37 GMT", MAX_RETRY_AFTER),
        (None, None), ("", None), ("-1", None), ("1.5", None), ("soon", None), ("\u0663", None), ("7" * 65, None),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_bounded(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, AT) == seconds


@given(st.text(max_size=70))
def test_any_retry_after_is_parsed_or_ignored(text: str) -> None:
    seconds = parse_retry_after(text, AT)
    assert seconds is None or 0 <= seconds <= MAX_RETRY_AFTER


def test_a_minimum_rate_of_one_s_own_is_there_from_the_start_and_comes_back() -> None:
    budget = RetryBudget(0, CONTINUATIONS_PER_SECOND)
    assert taken(budget, 0) == CONTINUATIONS_PER_SECOND * RetryBudget.WINDOW
    assert taken(budget, 1) in (19, 20)
