"""What may be looked up and stored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl
from router.core.cache.policy import CacheDecision, Freshness, StorePolicy, decide_caching, evaluate_freshness
from router.core.endpoints.endpoint import InferenceRequest
from router.core.types import BypassReason
from tests.support.factories import chat, embeddings, messages, responses

CACHED = CacheDecision(None, may_store=True)


def decided(
    asked: InferenceRequest, control: CacheControl, store_policy: StorePolicy
) -> tuple[BypassReason | None, bool]:
    """Why it is not looked up, and whether it may be stored."""
    bypass, may_store = decide_caching(asked, control, store_policy)
    return None if bypass is None else bypass.reason, may_store


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"temperature": 1.5}, {"seed": 1}, {"n": 3}])
def test_everything_is_cached_by_default(fields: dict[str, Any]) -> None:
    assert decide_caching(chat(**fields), NO_DIRECTIVES, "all") == CACHED


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1}, {"temperature": 0.01}, {"temperature": None}, {"seed": None}]
)
def test_what_may_be_answered_otherwise_next_time_is_left_out_where_only_the_deterministic_is_kept(
    fields: dict[str, Any],
) -> None:
    assert decided(chat(**fields), NO_DIRECTIVES, "deterministic") == (BypassReason.POLICY, False)


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 0.0}, {"seed": 0}, {"seed": 7, "temperature": 2}]
)
def test_temperature_0_or_a_seed_is_deterministic(fields: dict[str, Any]) -> None:
    assert decide_caching(chat(**fields), NO_DIRECTIVES, "deterministic") == CACHED


def test_no_store_is_neither_looked_up_nor_kept() -> None:
    assert decided(chat(), CacheControl(no_store=True), "all") == (BypassReason.NO_STORE, False)
    assert decided(chat(), CacheControl(no_store=True, no_cache=True), "all") == (BypassReason.NO_STORE, False)


def test_no_cache_is_not_looked_up_but_kept() -> None:
    assert decided(chat(), CacheControl(no_cache=True), "all") == (BypassReason.NO_CACHE, True)


def test_a_client_cannot_have_kept_what_the_configuration_leaves_out() -> None:
    assert decided(chat(), CacheControl(no_cache=True, ttl=60), "deterministic") == (BypassReason.POLICY, False)


def test_an_answer_that_may_live_for_no_second_is_looked_up_and_not_kept() -> None:
    assert decide_caching(chat(), CacheControl(ttl=0), "all") == CacheDecision(None, may_store=False)
    assert decide_caching(chat(), CacheControl(ttl=1), "all") == CACHED


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
def test_what_depends_on_more_than_the_request_is_neither_looked_up_nor_kept(asked: InferenceRequest) -> None:
    assert decided(asked, NO_DIRECTIVES, "all") == (BypassReason.UNCACHEABLE, False)
    assert decided(asked, CacheControl(no_cache=True, ttl=60), "all") == (BypassReason.UNCACHEABLE, False)
    assert decided(asked, NO_DIRECTIVES, "deterministic") == (BypassReason.UNCACHEABLE, False)


@pytest.mark.parametrize(
    ("asked", "control", "store_policy", "explanation"),
    [
        (chat(), CacheControl(no_store=True), "deterministic", "no-store"),
        (chat(seed=1), CacheControl(no_cache=True), "deterministic", "no-cache"),
        (chat(), CacheControl(no_cache=True), "deterministic", 'cache.store is "deterministic"'),
        (responses(background=True), CacheControl(no_cache=True), "deterministic", "`background`"),
    ],
)
def test_of_several_reasons_the_one_that_is_told_is_the_one_that_is_explained(
    asked: InferenceRequest, control: CacheControl, store_policy: StorePolicy, explanation: str
) -> None:
    bypass, _ = decide_caching(asked, control, store_policy)
    assert bypass is not None
    assert explanation in bypass.explanation


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
def test_what_depends_on_the_request_alone_is_cached(asked: InferenceRequest) -> None:
    assert decide_caching(asked, NO_DIRECTIVES, "all") == CACHED


def test_embeddings_are_kept_where_only_the_deterministic_is() -> None:
    assert decide_caching(embeddings(), NO_DIRECTIVES, "deterministic") == CACHED


# -- freshness --------------------------------------------------------------------------------------------------------

AGES = st.integers(0, 200)
WISHES = st.builds(
    CacheControl, max_age=st.none() | AGES, max_stale=st.none() | AGES.map(float) | st.just(float("inf"))
)  # fmt: skip
WORSE = [Freshness.FRESH, Freshness.STALE, Freshness.STALE_IF_ERROR, Freshness.UNUSABLE]
"""From the best freshness to none."""


@given(AGES, AGES, AGES)
def test_who_wishes_nothing_gets_what_is_in_its_time_and_what_is_not_long_over_it_if_there_is_an_error(
    age: int, ttl: int, stale: int
) -> None:
    expected = Freshness.FRESH if age <= ttl else Freshness.STALE_IF_ERROR if age <= ttl + stale else Freshness.UNUSABLE
    assert evaluate_freshness(age, ttl, NO_DIRECTIVES, stale) is expected


@given(AGES, AGES, WISHES, AGES)
def test_fresh_is_nothing_beyond_its_time(age: int, ttl: int, wishes: CacheControl, stale: int) -> None:
    if evaluate_freshness(age, ttl, wishes, stale) is Freshness.FRESH:
        assert age <= ttl


@given(AGES, AGES, AGES, AGES)
def test_nothing_is_given_that_is_older_than_the_client_takes(age: int, ttl: int, max_age: int, stale: int) -> None:
    if evaluate_freshness(age, ttl, CacheControl(max_age=max_age), stale) is not Freshness.UNUSABLE:
        assert age <= max_age


@given(AGES, AGES, WISHES, AGES)
def test_stale_is_only_given_by_as_much_as_the_client_takes(
    age: int, ttl: int, wishes: CacheControl, stale: int
) -> None:
    """RFC 9111, section 5.2.1: max-age shortens the freshness lifetime, and max-stale extends it."""
    if evaluate_freshness(age, ttl, wishes, stale) is Freshness.STALE:
        assert wishes.max_stale is not None
        lifetime = ttl if wishes.max_age is None else min(ttl, wishes.max_age)
        assert ttl < age <= lifetime + wishes.max_stale


@given(AGES, AGES, AGES, WISHES, AGES)
def test_what_grows_older_is_never_of_more_use(age: int, by: int, ttl: int, wishes: CacheControl, stale: int) -> None:
    younger, older = evaluate_freshness(age, ttl, wishes, stale), evaluate_freshness(age + by, ttl, wishes, stale)
    assert WORSE.index(younger) <= WORSE.index(older)


@given(AGES, AGES, WISHES, AGES)
def test_a_max_age_takes_away_and_a_max_stale_adds(age: int, ttl: int, wishes: CacheControl, stale: int) -> None:
    rank = WORSE.index(evaluate_freshness(age, ttl, wishes, stale))
    assert rank >= WORSE.index(evaluate_freshness(age, ttl, CacheControl(max_stale=wishes.max_stale), stale))
    assert rank <= WORSE.index(evaluate_freshness(age, ttl, CacheControl(max_age=wishes.max_age), stale))


@pytest.mark.parametrize(
    ("wishes", "age", "use"),
    [
        (CacheControl(max_stale=10), 110, Freshness.STALE),
        (CacheControl(max_stale=10), 111, Freshness.STALE_IF_ERROR),
        (CacheControl(max_stale=float("inf")), 10**9, Freshness.STALE),
        (CacheControl(max_stale=0), 101, Freshness.STALE_IF_ERROR),
        (CacheControl(max_age=50, max_stale=10), 60, Freshness.FRESH),
        (CacheControl(max_age=50, max_stale=10), 61, Freshness.UNUSABLE),
        (CacheControl(max_age=50, max_stale=60), 105, Freshness.STALE),
        (CacheControl(max_age=200, max_stale=10), 110, Freshness.STALE),
        (CacheControl(max_age=200), 110, Freshness.STALE_IF_ERROR),
        (CacheControl(max_age=0), 0, Freshness.FRESH),
    ],
)
def test_by_how_much_a_client_takes_what_is_stale(wishes: CacheControl, age: int, use: Freshness) -> None:
    assert evaluate_freshness(age, 100, wishes, 50) is use
