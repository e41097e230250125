"""What may be looked up and stored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.cache_control import NO_WISHES, Control
from router.core.cache.policy import Decision, Use, decide, usable
from router.core.endpoints.request import Request
from router.core.types import Bypass
from tests.support.factories import chat, embeddings, messages, responses

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


@pytest.mark.parametrize(
    "asked",
    [
        responses(previous_response_id="resp_1"),
        responses(conversation="conv_1"),
        responses(conversation={"id": "conv_1"}),
        responses(background=True),
        responses(prompt={"id": "pmpt_1"}),
        responses(tools=[{"type": "mcp", "server_url": "x"}]),
        responses(tools=[{"type": "function", "name": "f"}, {"type": "web_search"}]),
        responses(tools=[{"type": "file_search"}]),
        responses(tools=[{"type": "code_interpreter"}]),
        responses(input=[{"type": "item_reference", "id": "msg_1"}]),
        responses(input=[{"id": "msg_1"}]),
        messages(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        messages(mcp_servers=[{"type": "url"}]),
        messages(container="c"),
    ],
)
def test_what_depends_on_more_than_the_request_is_neither_looked_up_nor_kept(asked: Request) -> None:
    assert decide(asked, NO_WISHES, "all") == Decision(Bypass.UNCACHEABLE, keep=False)
    assert decide(asked, Control(no_cache=True, ttl=60), "all") == Decision(Bypass.UNCACHEABLE, keep=False)
    assert decide(asked, NO_WISHES, "deterministic") == Decision(Bypass.UNCACHEABLE, keep=False)


@pytest.mark.parametrize(
    "asked",
    [
        responses(previous_response_id=None, background=False, conversation=None, tools=None, store=True),
        responses(tools=[{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]),
        responses(input=[{"type": "function_call_output", "call_id": "c", "output": "x"}]),
        messages(tools=[{"name": "f", "input_schema": {}}, {"type": "custom", "name": "g", "input_schema": {}}]),
        messages(mcp_servers=[]),
        embeddings(),
        chat(previous_response_id="x", background=True),
    ],
)
def test_what_depends_on_the_request_alone_is_cached(asked: Request) -> None:
    assert decide(asked, NO_WISHES, "all") == CACHED


def test_embeddings_are_kept_where_only_the_deterministic_is() -> None:
    assert decide(embeddings(), NO_WISHES, "deterministic") == CACHED


# -- what a stored answer is good for ---------------------------------------------------------------------------------

AGES = st.integers(0, 200)
WISHES = st.builds(
    Control, max_age=st.none() | AGES, max_stale=st.none() | AGES.map(float) | st.just(float("inf"))
)  # fmt: skip
WORSE = [Use.FRESH, Use.STALE, Use.IF_ERROR, Use.NONE]
"""From the best use to none."""


@given(AGES, AGES, AGES)
def test_who_wishes_nothing_gets_what_is_in_its_time_and_what_is_not_long_over_it_if_there_is_an_error(
    age: int, ttl: int, stale: int
) -> None:
    expected = Use.FRESH if age <= ttl else Use.IF_ERROR if age <= ttl + stale else Use.NONE
    assert usable(age, ttl, NO_WISHES, stale) is expected


@given(AGES, AGES, WISHES, AGES)
def test_fresh_is_nothing_beyond_its_time(age: int, ttl: int, wishes: Control, stale: int) -> None:
    if usable(age, ttl, wishes, stale) is Use.FRESH:
        assert age <= ttl


@given(AGES, AGES, AGES, AGES)
def test_nothing_is_given_that_is_older_than_the_client_takes(age: int, ttl: int, max_age: int, stale: int) -> None:
    if usable(age, ttl, Control(max_age=max_age), stale) is not Use.NONE:
        assert age <= max_age


@given(AGES, AGES, WISHES, AGES)
def test_stale_is_only_given_by_as_much_as_the_client_takes(age: int, ttl: int, wishes: Control, stale: int) -> None:
    """RFC 9111, section 5.2.1: max-age makes the time to live shorter, max-stale is counted from there."""
    if usable(age, ttl, wishes, stale) is Use.STALE:
        assert wishes.max_stale is not None
        lifetime = ttl if wishes.max_age is None else min(ttl, wishes.max_age)
        assert ttl < age <= lifetime + wishes.max_stale


@given(AGES, AGES, AGES, WISHES, AGES)
def test_what_grows_older_is_never_of_more_use(age: int, by: int, ttl: int, wishes: Control, stale: int) -> None:
    younger, older = usable(age, ttl, wishes, stale), usable(age + by, ttl, wishes, stale)
    assert WORSE.index(younger) <= WORSE.index(older)


@given(AGES, AGES, WISHES, AGES)
def test_a_max_age_takes_away_and_a_max_stale_adds(age: int, ttl: int, wishes: Control, stale: int) -> None:
    found = WORSE.index(usable(age, ttl, wishes, stale))
    assert found >= WORSE.index(usable(age, ttl, Control(max_stale=wishes.max_stale), stale))
    assert found <= WORSE.index(usable(age, ttl, Control(max_age=wishes.max_age), stale))


@pytest.mark.parametrize(
    ("wishes", "age", "use"),
    [
        (Control(max_stale=10), 110, Use.STALE),
        (Control(max_stale=10), 111, Use.IF_ERROR),
        (Control(max_stale=float("inf")), 10**9, Use.STALE),
        (Control(max_stale=0), 101, Use.IF_ERROR),
        (Control(max_age=50, max_stale=10), 60, Use.FRESH),
        (Control(max_age=50, max_stale=10), 61, Use.NONE),
        (Control(max_age=50, max_stale=60), 105, Use.STALE),
        (Control(max_age=200, max_stale=10), 110, Use.STALE),
        (Control(max_age=200), 110, Use.IF_ERROR),
        (Control(max_age=0), 0, Use.FRESH),
    ],
)
def test_by_how_much_a_client_takes_what_is_stale(wishes: Control, age: int, use: Use) -> None:
    assert usable(age, 100, wishes, 50) is use
