"""What may be looked up and stored."""

from typing import Any

import pytest
from making import chat

from router.core.policy import bypass
from router.core.types import Bypass


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"temperature": 1.5}, {"seed": 1}, {"n": 3}])
def test_everything_is_cached_by_default(fields: dict[str, Any]) -> None:
    assert bypass(chat(**fields), "all") is None


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1}, {"temperature": 0.01}, {"temperature": None}, {"seed": None}]
)
def test_what_may_be_answered_otherwise_next_time_is_left_out_where_only_the_deterministic_is_kept(
    fields: dict[str, Any],
) -> None:
    assert bypass(chat(**fields), "deterministic") is Bypass.POLICY


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 0.0}, {"seed": 0}, {"seed": 7, "temperature": 2}]
)
def test_temperature_0_or_a_seed_is_deterministic(fields: dict[str, Any]) -> None:
    assert bypass(chat(**fields), "deterministic") is None
