"""The timeout of an engine for a complete response."""

import pytest

from router.core.resilience.timeouts import DEFAULT_ANSWER_TOKENS, MAX_ANSWER_TOKENS, EngineTimeouts

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
    assert TIMEOUTS.total(max_tokens, max_model_len) == pytest.approx(seconds)
