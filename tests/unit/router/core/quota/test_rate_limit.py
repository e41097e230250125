"""A tenant's limits: never more than they allow, and never a permanent refusal."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.rate_limit import (
    Quota,
    RateLimitStatus,
    TenantUsage,
    UsageUpdate,
    encode_duration,
    estimate_tokens,
    rate_limit_error,
    rate_limit_headers,
)

LEASE = 3000
NONE = Quota()


def acquire(usage: TenantUsage, limits: Quota, now: float, process: str = "p") -> RateLimitStatus:
    return usage.apply(limits, UsageUpdate(process=process, acquire=True), int(now * 1000), LEASE)


def is_admitted(usage: TenantUsage, limits: Quota, now: float, process: str = "p") -> bool:
    return acquire(usage, limits, now, process).exceeded is None


def test_without_a_limit_every_request_is_admitted() -> None:
    usage = TenantUsage()
    assert all(is_admitted(usage, NONE, 0) for _ in range(1000))
    assert not NONE.is_limited
    assert Quota(concurrent_requests=1).is_limited


# Requests


@given(st.lists(st.integers(0, 40_000), max_size=80), st.integers(1, 8))
def test_no_more_requests_are_admitted_in_any_minute_than_the_limit(gaps: list[int], limit: int) -> None:
    usage, limits, now, admitted = TenantUsage(), Quota(requests_per_minute=limit), 1_000_000, list[int]()
    for gap in gaps:
        now += gap
        if usage.apply(limits, UsageUpdate(process="p", acquire=True), now, LEASE).exceeded is None:
            admitted.append(now)
    for first in admitted:
        assert sum(first <= instant < first + 60_000 for instant in admitted) <= limit


@given(st.lists(st.integers(0, 20_000), max_size=60), st.integers(1, 5))
def test_a_client_that_waits_exactly_as_long_as_advised_is_admitted(gaps: list[int], limit: int) -> None:
    usage, limits, now = TenantUsage(), Quota(requests_per_minute=limit), 1_000_000
    for gap in gaps:
        now += gap
        status = usage.apply(limits, UsageUpdate(process="p", acquire=True), now, LEASE)
        if status.exceeded is not None:
            assert status.exceeded == "requests"
            assert 0 < status.retry_after_ms <= 60_000
            if status.retry_after_ms > 1:
                early = usage.apply(
                    limits, UsageUpdate(process="p", acquire=True), now + status.retry_after_ms - 1, LEASE
                )
                assert early.exceeded == "requests"
            now += status.retry_after_ms
            assert usage.apply(limits, UsageUpdate(process="p", acquire=True), now, LEASE).exceeded is None


def test_a_refused_request_costs_nothing() -> None:
    usage, limits = TenantUsage(), Quota(requests_per_minute=2)
    assert [is_admitted(usage, limits, 0.5) for _ in range(50)] == [True, True] + [False] * 48
    assert is_admitted(usage, limits, 60.5)


def test_the_remaining_quota_and_its_reset_are_returned() -> None:
    usage, limits = TenantUsage(), Quota(requests_per_minute=3)
    assert acquire(usage, limits, 10).requests_remaining == 2
    status = acquire(usage, limits, 20.5)
    assert (status.requests_remaining, status.requests_reset_ms) == (1, 60_000)


def test_a_clock_that_is_set_back_blocks_no_tenant_for_long() -> None:
    usage, limits = TenantUsage(), Quota(requests_per_minute=2, tokens_per_minute=10)
    assert [is_admitted(usage, limits, 1000) for _ in range(2)] == [True, True]
    assert not is_admitted(usage, limits, 990), "a little: they still count"
    assert is_admitted(usage, limits, 100), "by far: another clock's seconds mean nothing"


# Tokens


def spend(usage: TenantUsage, limits: Quota, tokens: int, now: float) -> RateLimitStatus:
    return usage.apply(limits, UsageUpdate(process="p", tokens_used=tokens), int(now * 1000), LEASE)


def test_tokens_are_subtracted_after_use_and_debts_are_paid_first() -> None:
    usage, limits = TenantUsage(), Quota(tokens_per_minute=60)
    assert acquire(usage, limits, 0).tokens_remaining == 60
    assert spend(usage, limits, 100, 0).tokens_remaining == 0
    status = acquire(usage, limits, 0)
    assert (status.exceeded, status.retry_after_ms, status.tokens_reset_ms) == ("tokens", 41_000, 100_000)
    assert not is_admitted(usage, limits, 40.9)
    assert is_admitted(usage, limits, 41)
    assert acquire(usage, limits, 1000).tokens_remaining == 60, "it never holds more than a minute's worth"


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 500)), max_size=60), st.integers(1, 300))
def test_over_time_no_more_tokens_are_used_than_the_limit_except_for_the_last_request(
    work: Iterable[tuple[int, int]], limit: int
) -> None:
    usage, limits, now, used, last = TenantUsage(), Quota(tokens_per_minute=limit), 0, 0, 0
    for gap, tokens in work:
        now += gap
        if usage.apply(limits, UsageUpdate(process="p", acquire=True), now, LEASE).exceeded is None:
            assert used <= limit + limit * now / 60_000 + 1
            usage.apply(limits, UsageUpdate(process="p", tokens_used=tokens), now, LEASE)
            used, last = used + tokens, tokens
    assert used - last <= limit + limit * now / 60_000 + 1


# Concurrent requests


def test_no_more_requests_run_than_the_limit_and_the_next_is_admitted_when_one_ends() -> None:
    usage, limits = TenantUsage(), Quota(concurrent_requests=2)
    assert [is_admitted(usage, limits, 0, process) for process in "pqp"] == [True, True, False]
    usage.apply(limits, UsageUpdate(process="q", released=1), 0, LEASE)
    assert [is_admitted(usage, limits, 0, process) for process in "pq"] == [True, False]


def test_the_slots_of_a_silent_process_are_released_after_its_lease() -> None:
    usage, limits = TenantUsage(), Quota(concurrent_requests=1)
    assert is_admitted(usage, limits, 0, "gone")
    assert not is_admitted(usage, limits, 2.999)
    assert is_admitted(usage, limits, 3)


def test_a_clock_that_is_set_back_keeps_the_slots_of_a_dead_process_for_at_most_a_lease() -> None:
    usage, limits = TenantUsage(), Quota(concurrent_requests=1)
    assert is_admitted(usage, limits, 10_000, process="gone")
    assert not is_admitted(usage, limits, 6400), "an hour before: it may still be there"
    assert not is_admitted(usage, limits, 6402.9)
    assert is_admitted(usage, limits, 6403)


def test_requests_of_a_process_without_the_limit_do_not_run_at_one_that_has_it() -> None:
    usage, limited, unlimited = TenantUsage(), Quota(concurrent_requests=2), Quota(requests_per_minute=1000)
    assert all(is_admitted(usage, unlimited, 0, "without") for _ in range(10))
    assert [is_admitted(usage, limited, 1, "with") for _ in range(3)] == [True, True, False]
    assert is_admitted(usage, unlimited, 2, "with"), "the limit was removed there"
    assert is_admitted(usage, limited, 3, "third"), "what ran there with the limit is not counted any more"


def test_a_process_that_reports_again_keeps_its_slots() -> None:
    usage, limits = TenantUsage(), Quota(concurrent_requests=1)
    assert is_admitted(usage, limits, 0, "long")
    for second in range(1, 10):
        usage.apply(limits, UsageUpdate(process="long", running=1), second * 1000, LEASE)
        assert not is_admitted(usage, limits, second)
    usage.apply(limits, UsageUpdate(process="long", running=0), 10_000, LEASE)
    assert is_admitted(usage, limits, 10)


def test_an_end_that_is_reported_twice_releases_nothing_twice() -> None:
    usage, limits = TenantUsage(), Quota(concurrent_requests=1)
    usage.apply(limits, UsageUpdate(process="p", released=3), 0, LEASE)
    assert [is_admitted(usage, limits, 0) for _ in range(2)] == [True, False]


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.booleans()), max_size=100), st.integers(1, 5))
def test_in_any_sequence_no_more_requests_run_than_the_limit(steps: Iterable[tuple[str, bool]], limit: int) -> None:
    usage, limits, working = TenantUsage(), Quota(concurrent_requests=limit), dict.fromkeys("pqr", 0)
    for process, wants in steps:
        if wants:
            admitted = is_admitted(usage, limits, 0, process)
            assert admitted is (sum(working.values()) < limit), "and all that may are"
            working[process] += admitted
        elif working[process]:
            usage.apply(limits, UsageUpdate(process=process, released=1), 0, LEASE)
            working[process] -= 1


# Headers


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, b"0s"), (20, b"20ms"), (999, b"999ms"), (1000, b"1s"), (1001, b"2s"), (59_001, b"1m0s"), (360_000, b"6m0s")],
)
def test_durations_are_formatted_as_openai_does(milliseconds: int, text: bytes) -> None:
    assert encode_duration(milliseconds) == text


def test_only_existing_limits_have_headers() -> None:
    status = RateLimitStatus(requests_remaining=4, requests_reset_ms=61_000, tokens_remaining=90, tokens_reset_ms=500)
    assert rate_limit_headers(Quota(requests_per_minute=5), status) == [
        (b"x-ratelimit-limit-requests", b"5"),
        (b"x-ratelimit-remaining-requests", b"4"),
        (b"x-ratelimit-reset-requests", b"1m1s"),
    ]
    assert (b"x-ratelimit-reset-tokens", b"500ms") in rate_limit_headers(Quota(tokens_per_minute=99), status)
    assert rate_limit_headers(Quota(concurrent_requests=5), status) == []


@pytest.mark.parametrize(
    ("limits", "status", "kind", "reason"),
    [
        (Quota(requests_per_minute=7), RateLimitStatus(exceeded="requests", retry_after_ms=1), "requests",
        "requests_limit"), (Quota(tokens_per_minute=7), RateLimitStatus(exceeded="tokens", retry_after_ms=900),
        "tokens", "tokens_limit"), (
            Quota(concurrent_requests=7), RateLimitStatus(exceeded="concurrent requests", retry_after_ms=1000),
            "rate_limit_error", "concurrent_requests_limit",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_limit_and_the_time_to_wait(
    limits: Quota, status: RateLimitStatus, kind: str, reason: str
) -> None:
    error = rate_limit_error(limits, status)
    assert (error.status, error.kind, error.code, error.reason) == (429, kind, "rate_limit_exceeded", reason)
    assert error.retry_after == 1
    assert "7 " in error.message


def test_an_unreported_usage_is_estimated() -> None:
    assert estimate_tokens(400, 30, 0) == 130
    assert estimate_tokens(400, 0, 80) == 120
