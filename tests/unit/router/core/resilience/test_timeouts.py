"""The timeout of an engine for a complete response."""

import pytest

from router.core.resilience.timeouts import (
    DEFAULT_ANSWER_TOKENS,
    MAX_ANSWER_TOKENS,
    MAX_BATCH_TOKENS,
    EngineTimeouts,
    Workload,
)

TIMEOUTS = EngineTimeouts(first_token=30, between_tokens=15, min_tokens_per_second=10)


@pytest.mark.parametrize(
    ("max_tokens", "max_model_len", "seconds"),
    [
        (100, None, 30 + 10),
        (100, 4096, 30 + 10),
        (8192, 4096, 30 + 409.6),  # an engine cannot generate more than its context
        (None, 4096, 30 + 409.6),
        (None, None, 30 + DEFAULT_ANSWER_TOKENS / 10),
        (0, 4096, 30 + 409.6),  # the engine decides what 0 means
        (1, 1, 30.1),
        (-1000, 4096, 30 + 409.6),  # so that the engine has the time to refuse it
        (-1000, None, 30 + DEFAULT_ANSWER_TOKENS / 10),
        (10**400, None, 30 + MAX_ANSWER_TOKENS / 10),
    ],
)
def test_a_response_may_take_its_length_at_the_minimum_speed(
    max_tokens: int | None, max_model_len: int | None, seconds: float
) -> None:
    assert TIMEOUTS.total(Workload(max_tokens), max_model_len) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("work", "max_model_len", "seconds"),
    [
        (Workload(16, answers=512), 8192, 30 + 512 * 1.6),
        (Workload(None, answers=2), 8192, 30 + 2 * 819.2),
        (Workload(100, answers=10**400), 8192, 30 + MAX_BATCH_TOKENS / 10),  # a client's number must not overflow
        (Workload(100_000, answers=2), 131_072, 30 + 10_000),  # one answer of that length counts in full
        (Workload(10, answers=0), None, 30 + 1),
    ],
)
def test_a_request_with_several_answers_may_take_the_time_of_all_up_to_a_bound(
    work: Workload, max_model_len: int | None, seconds: float
) -> None:
    assert TIMEOUTS.total(work, max_model_len) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("prompt_bytes", "max_model_len", "seconds"),
    [
        (400_000, 131_072, 400),
        (400_000, None, 4 * MAX_BATCH_TOKENS / 1000),
        (50_000_000, 131_072, 4 * 131_072 / 1000),  # what is over the context is no text
    ],
)
def test_a_long_prompt_prolongs_the_timeout(prompt_bytes: int, max_model_len: int | None, seconds: float) -> None:
    assert TIMEOUTS.total(Workload(10, 1, prompt_bytes), max_model_len) == pytest.approx(30 + 1 + seconds)
