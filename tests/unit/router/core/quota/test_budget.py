"""Budgets: their days and months in UTC, a clock that is set, and the error of a tenant that is over one."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.budget import DAY, Budget, BudgetUse, budget_error, budget_status, month_of, use_at


def at(text: str) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()


def used(text: str, tokens: int, gpu_ms: int = 0) -> BudgetUse:
    """What a tenant has used that used something at an instant, for the first time."""
    return use_at(None, at(text)).plus(tokens, gpu_ms)


def amounts(use: BudgetUse) -> tuple[int, int]:
    """Tokens of the day and of the month."""
    return use.day_tokens, use.month_tokens


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("2026-11-23T00:00:00", "2026-11-23T23:59:59", (5, 5)),
        ("2026-11-23T23:59:59", "2026-11-24T00:00:00", (0, 5)),
        ("2026-11-30T23:59:59", "2026-12-01T00:00:00", (0, 0)),
        ("2026-12-31T23:59:59", "2027-01-01T00:00:00", (0, 0)),
        ("2027-02-28T23:59:59", "2027-03-01T00:00:00", (0, 0)),
        ("2028-02-28T23:59:59", "2028-02-29T00:00:00", (0, 5)),  # a leap year
        ("2028-02-29T23:59:59", "2028-03-01T00:00:00", (0, 0)),
        ("2000-02-28T23:59:59", "2000-02-29T00:00:00", (0, 5)),  # a leap year, unlike 2100
        ("2100-02-28T23:59:59", "2100-03-01T00:00:00", (0, 0)),
        ("2026-11-23T12:00:00", "2027-11-23T12:00:00", (0, 0)),
        ("2026-11-01T12:00:00", "2027-11-01T12:00:00", (0, 0)),
    ],
)
def test_a_budget_starts_anew_with_its_day_and_its_month(before: str, after: str, left: tuple[int, int]) -> None:
    assert amounts(use_at(used(before, 5), at(after))) == left


def test_a_clock_that_jumps_over_midnight_and_back_gives_no_second_budget() -> None:
    use = used("2026-11-30T23:59:00", 5)
    use = use_at(use, at("2026-12-01T00:01:00")).plus(7, 0)
    use = use_at(use, at("2026-11-30T23:58:00"))
    assert amounts(use) == (7, 7), "it is still the day and the month that had begun"
    assert use.resets_on("tokens_per_day") * DAY == at("2026-12-02T00:00:00")
    assert amounts(use_at(use.plus(1, 0), at("2026-12-01T00:02:00"))) == (8, 8)


def test_what_was_counted_with_a_clock_far_ahead_counts_for_the_present() -> None:
    use = use_at(used("2031-05-05T00:00:00", 9), at("2026-11-23T12:00:00"))
    assert amounts(use) == (9, 9)
    assert amounts(use_at(use, at("2026-11-24T00:00:00"))) == (0, 9), "and not for years"


@given(st.integers(0, 60_000), st.integers(-40, 40))
def test_months_are_those_of_the_calendar(day: int, later: int) -> None:
    date = dt.date(1970, 1, 1) + dt.timedelta(days=day)
    assert divmod(month_of(day), 12) == (date.year, date.month - 1)
    use = use_at(None, day * DAY)
    end = dt.datetime.fromtimestamp(use.resets_on("tokens_per_month") * DAY, dt.UTC)
    assert (end.day, end.hour, end.minute, end.second) == (1, 0, 0, 0)
    assert month_of(int(end.timestamp()) // DAY) == use.month + 1
    assert month_of(int(end.timestamp()) // DAY - 1) == use.month


spending = st.lists(st.tuples(st.integers(0, 20 * DAY), st.integers(0, 10**9)), max_size=20)


@given(spending)
def test_with_a_clock_that_is_not_set_back_the_sums_are_those_of_the_day_and_month(steps: Any) -> None:
    use, now, history = None, 1_790_000_000, []
    for later, tokens in steps:
        now += later
        use = use_at(use, now).plus(tokens, 0)
        history.append((now // DAY, tokens))
    if use is not None:
        today = now // DAY
        assert use.day_tokens == sum(tokens for day, tokens in history if day == today)
        assert use.month_tokens == sum(tokens for day, tokens in history if month_of(day) == month_of(today))


def test_without_a_budget_nothing_is_exceeded() -> None:
    assert not Budget().is_limited
    assert budget_error(Budget(), used("2026-11-23T12:00:00", 10**12)) is None
    assert budget_status(Budget(), used("2026-11-23T12:00:00", 1)) == []


def test_a_tenant_may_use_a_budget_up_and_not_more() -> None:
    budget = Budget(tokens_per_day=10)
    assert budget_error(budget, used("2026-11-23T12:00:00", 9)) is None
    assert budget_error(budget, used("2026-11-23T12:00:00", 10)) is not None


def test_the_error_is_that_of_openai_and_tells_the_budget_and_when_it_resets() -> None:
    error = budget_error(Budget(gpu_seconds_per_day=60), used("2026-11-23T23:00:00", 0, 60_000))
    assert error is not None
    assert (error.status, error.kind, error.code, error.param) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
        None,
    )
    assert error.message == (
        "You exceeded your current quota: 60 GPU seconds per day. It resets at 2026-11-24T00:00:00Z."
    )
    assert (error.retry_after, error.reason) == (3600, "gpu_seconds_per_day_budget")


def test_a_request_that_leaves_a_reserve_is_refused_before_the_budget_is_used_up() -> None:
    budget = Budget(tokens_per_day=1000, gpu_seconds_per_month=1)
    assert budget_error(budget, used("2026-11-23T18:00:00", 749), 0.25) is None
    error = budget_error(budget, used("2026-11-23T18:00:00", 750), 0.25)
    assert error is not None
    assert error.message == (
        "Batches leave 25% of the quota of 1000 tokens per day to other requests, and the rest is used. "
        "It resets at 2026-11-24T00:00:00Z."
    )
    assert (error.retry_after, error.reason) == (6 * 3600, "tokens_per_day_budget")
    assert budget_error(budget, used("2026-11-23T18:00:00", 750)) is None
    used_up = budget_error(budget, used("2026-11-23T18:00:00", 1000), 0.25)
    assert used_up is not None
    assert used_up.message.startswith("You exceeded your current quota: 1000 tokens per day.")


def test_of_several_exceeded_budgets_the_error_tells_the_one_that_resets_last() -> None:
    budget = Budget(tokens_per_day=1, tokens_per_month=1, gpu_seconds_per_day=1, gpu_seconds_per_month=100)
    error = budget_error(budget, used("2026-11-23T23:00:00", 5, 5000))
    assert error is not None
    assert error.message.startswith("You exceeded your current quota: 1 tokens per month. It resets at 2026-12-01")


def test_the_status_has_what_remains_of_each_budget_and_never_less_than_nothing() -> None:
    budget = Budget(tokens_per_day=100, gpu_seconds_per_month=2)
    day, month = budget_status(budget, used("2026-12-31T12:00:00", 30, 2500))
    assert (day.budget, day.limit, day.used, day.remaining, day.resets_at) == (
        "tokens_per_day", 100, 30, 70, "2027-01-01T00:00:00Z",
    )  # fmt: skip
    assert (month.used, month.remaining, month.resets_at) == (2.5, 0, "2027-01-01T00:00:00Z")
