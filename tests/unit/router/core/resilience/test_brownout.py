"""What is disabled under pressure, with hysteresis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.resilience.brownout import BrownoutLevel, brownout_level

NORMAL, FALLBACK, STALE = BrownoutLevel.NORMAL, BrownoutLevel.FALLBACK, BrownoutLevel.STALE


@pytest.mark.parametrize(
    ("shares", "levels"),
    [
        ([0, 0.25, 0.5, 0.75, 1], [NORMAL, NORMAL, FALLBACK, STALE, STALE]),
        ([1, 0.75, 0.5, 0.25, 0.2, 0], [STALE, STALE, STALE, FALLBACK, NORMAL, NORMAL]),
        ([0.5, 0.4, 0.5, 0.3, 0.24, 0.4, 0.5], [FALLBACK] * 4 + [NORMAL, NORMAL, FALLBACK]),
        ([0.8, 0.6, 0.8, 0.49, 0.6, 0.75], [STALE, STALE, STALE, FALLBACK, FALLBACK, STALE]),
        ([1, 0], [STALE, NORMAL]),
    ],
)
def test_a_level_is_entered_at_one_share_and_left_below_a_lower_one(
    shares: list[float], levels: list[BrownoutLevel]
) -> None:
    seen, now = [], NORMAL
    for share in shares:
        now = brownout_level(share, now)
        seen.append(now)
    assert seen == levels


@given(st.floats(0, 1), st.sampled_from(BrownoutLevel))
def test_the_same_pressure_twice_changes_nothing(share: float, before: BrownoutLevel) -> None:
    once = brownout_level(share, before)
    assert brownout_level(share, once) is once


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(BrownoutLevel))
def test_more_pressure_is_never_a_lower_level(one: float, other: float, before: BrownoutLevel) -> None:
    assert brownout_level(min(one, other), before) <= brownout_level(max(one, other), before)
