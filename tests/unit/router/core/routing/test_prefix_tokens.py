"""What an engine was believed to hold of a prompt, in its own tokens, beside what it reports."""

import pytest

from router.core.routing.prefill import PrefillEstimate
from router.core.routing.prefix_tokens import PrefixTokens, compare_prefix


@pytest.mark.parametrize(
    ("believed", "prompt_tokens", "cached_tokens", "result"),
    [
        ((1000, 750), 1000, 750, PrefixTokens(750, 250, 750)),
        ((1000, 750), 2000, 0, PrefixTokens(1500, 500, 0)),  # the share counts, not the tokens
        ((1000, 750), 2000, None, PrefixTokens(1500, 500, None)),
        ((1000, 750), 0, None, PrefixTokens(750, 250, None)),  # the engine reports no usage
        ((0, 0), 3, 0, PrefixTokens(0, 3, 0)),
    ],
)
def test_the_believed_share_applies_to_the_tokens_that_the_engine_counts(
    believed: tuple[int, int], prompt_tokens: int, cached_tokens: int | None, result: PrefixTokens
) -> None:
    estimate = PrefillEstimate("http://e:1", *believed, 0.0, 0.001, 0.0)
    assert compare_prefix(estimate, prompt_tokens, cached_tokens) == result
