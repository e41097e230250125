"""What may be looked up and stored."""

from typing import Any

import pytest
from making import chat

from router.core.control import NO_WISHES, Control
from router.core.policy import Decision, decide
from router.core.types import Bypass

CACHED = Decision(None, keep=True)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"temperature": 1.5}, {"seed": 1}, {"n": 3}])
def test_everything_is_cached_by_default(fields: dict[str, Any]) -> None:
    assert decide(chat(**fields), NO_WISHES, "all") == CACHED


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1}, {"temperature": 0.01}, {"temperature": None}, {"seed": None}]
)
def test_what_may_be_answered_otherwise_next_time_is_left_out_where_only_the_deterministic_is_kept(
    fields: dict[str, Any],
) -> None:
    assert decide(chat(**fields), NO_WISHES, "deterministic") == Decision(Bypass.POLICY, keep=False)


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 0.0}, {"seed": 0}, {"seed": 7, "temperature": 2}]
)
def test_temperature_0_or_a_seed_is_deterministic(fields: dict[str, Any]) -> None:
    assert decide(chat(**fields), NO_WISHES, "deterministic") == CACHED


def test_no_store_is_neither_looked_up_nor_kept() -> None:
    assert decide(chat(), Control(no_store=True), "all") == Decision(Bypass.NO_STORE, keep=False)
    assert decide(chat(), Control(no_store=True, no_cache=True), "all") == Decision(Bypass.NO_STORE, keep=False)


def test_no_cache_is_not_looked_up_but_kept() -> None:
    assert decide(chat(), Control(no_cache=True), "all") == Decision(Bypass.NO_CACHE, keep=True)


def test_a_client_cannot_have_kept_what_the_configuration_leaves_out() -> None:
    assert decide(chat(), Control(no_cache=True, ttl=60), "deterministic") == Decision(Bypass.POLICY, keep=False)


def test_an_answer_that_may_live_for_no_second_is_looked_up_and_not_kept() -> None:
    assert decide(chat(), Control(ttl=0), "all") == Decision(None, keep=False)
    assert decide(chat(), Control(ttl=1), "all") == CACHED
