"""What is said of a choice."""

import pytest

from router.core.routing.prefill import PrefillEstimate
from router.flow.routed_prompt import explain_choice

A = PrefillEstimate("a", 12_100, 11_264, 0.02, 0.0001, 0.2)
B = PrefillEstimate("b", 12_100, 0, 0.0, 0.0001, 1.3)
C = PrefillEstimate("c", 12_100, 12_000, 2.5, 0.0001, 2.6)


@pytest.mark.parametrize(
    ("url", "known", "text"),
    [
        ("a", [A, B, C], "prefix 11,264 of 12,100; queue 0.02 s; first token 0.10 s, 2 others 1.21 s"),
        ("a", [A, B], "prefix 11,264 of 12,100; queue 0.02 s; first token 0.10 s, 1 other 1.21 s"),
        ("a", [A], "prefix 11,264 of 12,100; queue 0.02 s"),
        ("a", [B, C], ""),
        ("a", [], ""),
    ],
)
def test_a_choice_is_explained_by_what_was_compared(url: str, known: list[PrefillEstimate], text: str) -> None:
    assert explain_choice(url, {estimate.url: estimate for estimate in known}) == text
