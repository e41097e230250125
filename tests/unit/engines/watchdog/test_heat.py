"""The share of its in-flight limit that an engine with hot GPUs may use."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.watchdog.heat import COOL_FOR, HeatState, decide_share

STEP = 5.0


def shares(*temperatures: float | None) -> list[float]:
    """After each reading, five seconds apart."""
    state, found = HeatState(), []
    for number, celsius in enumerate(temperatures):
        state = decide_share(state, celsius, 85.0, number * STEP)
        found.append(state.share)
    return found


@pytest.mark.parametrize(
    ("temperatures", "expected"),
    [
        ([40, 85], [1, 1]),
        ([86], [0.5]),
        ([86, 91], [0.5, 0.25]),
        ([91, 88], [0.25, 0.25]),
        ([86, 82, 82, 82, 82, 82, 82, 82, 82, 82], [0.5] * 10),
        ([None, None], [1, 1]),
        ([86, None, None], [0.5, 0.5, 0.5]),
    ],
)
def test_it_is_lowered_above_the_limit_and_kept_until_it_is_cool(
    temperatures: list[float | None], expected: list[float]
) -> None:
    assert shares(*temperatures) == expected


def test_it_is_raised_step_by_step_after_half_a_minute_each() -> None:
    steps = int(COOL_FOR / STEP)
    assert shares(91, *[75] * (2 * steps + 1)) == [0.25] * (steps + 1) + [0.5] * steps + [1.0]


def test_a_warm_reading_starts_the_half_minute_again() -> None:
    assert shares(86, *[75] * 5, 82, *[75] * 6) == [0.5] * 13


@given(st.lists(st.none() | st.floats(20, 110)))
def test_it_never_flaps(temperatures: list[float | None]) -> None:
    found = shares(*temperatures)
    assert set(found) <= {1.0, 0.5, 0.25}
    raised = [number for number, (before, after) in enumerate(pairwise(found)) if after > before]
    assert all(later - earlier >= COOL_FOR / STEP for earlier, later in pairwise(raised))
