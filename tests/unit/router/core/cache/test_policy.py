"""What may be looked up and stored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl
from router.core.cache.policy import (
    CacheDecision,
    CacheUse,
    Freshness,
    StorePolicy,
    decide_caching,
    evaluate_freshness,
    restrict,
)
from router.core.endpoints.endpoint import InferenceRequest
from router.core.types import BypassReason
from tests.support.factories import chat, embeddings, messages, responses

CACHED = CacheDecision(None, may_store=True)


def decide(
    inference_request: InferenceRequest, control: CacheControl, store_policy: StorePolicy
) -> tuple[BypassReason | None, bool]:
    """Why it is not looked up, and whether it may be stored."""
    bypass, may_store = decide_caching(inference_request, control, store_policy)
    return None if bypass is None else bypass.reason, may_store


@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"temperature": 1.5}, {"seed": 1}, {"n": 3}])
def test_everything_is_cached_by_default(fields: dict[str, Any]) -> None:
    assert decide_caching(chat(**fields), NO_DIRECTIVES, "all") == CACHED


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1}, {"temperature": 0.01}, {"temperature": None}, {"seed": None}]
)
def test_a_nondeterministic_request_is_bypassed_where_only_deterministic_ones_are_stored(
    fields: dict[str, Any],
) -> None:
    assert decide(chat(**fields), NO_DIRECTIVES, "deterministic") == (BypassReason.POLICY, False)


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 0.0}, {"seed": 0}, {"seed": 7, "temperature": 2}]
)
def test_temperature_0_or_a_seed_is_deterministic(fields: dict[str, Any]) -> None:
    assert decide_caching(chat(**fields), NO_DIRECTIVES, "deterministic") == CACHED


def test_no_store_is_neither_looked_up_nor_stored() -> None:
    assert decide(chat(), CacheControl(no_store=True), "all") == (BypassReason.NO_STORE, False)
    assert decide(chat(), CacheControl(no_store=True, no_cache=True), "all") == (BypassReason.NO_STORE, False)


def test_no_cache_is_not_looked_up_but_stored() -> None:
    assert decide(chat(), CacheControl(no_cache=True), "all") == (BypassReason.NO_CACHE, True)


def test_a_client_cannot_store_what_the_configuration_excludes() -> None:
    assert decide(chat(), CacheControl(no_cache=True, ttl=60), "deterministic") == (BypassReason.POLICY, False)


def test_a_response_with_a_ttl_of_zero_is_looked_up_and_not_stored() -> None:
    assert decide_caching(chat(), CacheControl(ttl=0), "all") == CacheDecision(None, may_store=False)
    assert decide_caching(chat(), CacheControl(ttl=1), "all") == CACHED


@pytest.mark.parametrize(
    "inference_request",
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
def test_a_request_that_depends_on_external_state_is_neither_looked_up_nor_stored(
    inference_request: InferenceRequest,
) -> None:
    assert decide(inference_request, NO_DIRECTIVES, "all") == (BypassReason.UNCACHEABLE, False)
    assert decide(inference_request, CacheControl(no_cache=True, ttl=60), "all") == (BypassReason.UNCACHEABLE, False)
    assert decide(inference_request, NO_DIRECTIVES, "deterministic") == (BypassReason.UNCACHEABLE, False)


def test_the_strictest_use_of_the_cache_applies() -> None:
    no_cache = decide_caching(chat(), CacheControl(no_cache=True), "all")
    assert restrict(CACHED, "on", "on") == CACHED
    assert restrict(CACHED, "on", "read") == restrict(CACHED, "read", "on") == CacheDecision(None, may_store=False)
    assert restrict(no_cache, "read") == CacheDecision(no_cache.bypass, may_store=False)
    pairs: list[tuple[CacheUse, CacheUse]] = [("off", "read"), ("on", "off")]
    for uses in pairs:
        bypass, may_store = restrict(no_cache, *uses)
        assert (bypass and bypass.reason, may_store) == (BypassReason.OFF, False)


@pytest.mark.parametrize(
    ("inference_request", "control", "store_policy", "explanation"),
    [
        (chat(), CacheControl(no_store=True), "deterministic", "no-store"),
        (chat(seed=1), CacheControl(no_cache=True), "deterministic", "no-cache"),
        (chat(), CacheControl(no_cache=True), "deterministic", 'cache.store is "deterministic"'),
        (responses(background=True), CacheControl(no_cache=True), "deterministic", "`background`"),
    ],
)
def test_of_several_reasons_the_reported_one_is_the_explained_one(
    inference_request: InferenceRequest, control: CacheControl, store_policy: StorePolicy, explanation: str
) -> None:
    bypass, _ = decide_caching(inference_request, control, store_policy)
    assert bypass is not None
    assert explanation in bypass.explanation


@pytest.mark.parametrize(
    "inference_request",
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
def test_a_request_that_depends_on_nothing_else_is_cached(inference_request: InferenceRequest) -> None:
    assert decide_caching(inference_request, NO_DIRECTIVES, "all") == CACHED


def test_embeddings_are_stored_where_only_deterministic_responses_are() -> None:
    assert decide_caching(embeddings(), NO_DIRECTIVES, "deterministic") == CACHED


# -- freshness --------------------------------------------------------------------------------------------------------

AGES = st.integers(0, 200)
DIRECTIVES = st.builds(
    CacheControl, max_age=st.none() | AGES, max_stale=st.none() | AGES.map(float) | st.just(float("inf"))
)  # fmt: skip
WORSE = [Freshness.FRESH, Freshness.STALE, Freshness.STALE_IF_ERROR, Freshness.UNUSABLE]
"""From the best freshness to none."""


@given(AGES, AGES, AGES)
def test_without_directives_a_fresh_entry_is_served_and_a_stale_one_only_on_an_error(
    age: int, ttl: int, stale: int
) -> None:
    expected = Freshness.FRESH if age <= ttl else Freshness.STALE_IF_ERROR if age <= ttl + stale else Freshness.UNUSABLE
    assert evaluate_freshness(age, ttl, NO_DIRECTIVES, stale) is expected


@given(AGES, AGES, DIRECTIVES, AGES)
def test_a_fresh_entry_is_within_its_ttl(age: int, ttl: int, directives: CacheControl, stale: int) -> None:
    if evaluate_freshness(age, ttl, directives, stale) is Freshness.FRESH:
        assert age <= ttl


@given(AGES, AGES, AGES, st.none() | AGES.map(float))
def test_no_engine_can_fail_for_a_request_with_only_if_cached(
    age: int, ttl: int, stale: int, max_stale: float | None
) -> None:
    directives = CacheControl(only_if_cached=True, max_stale=max_stale)
    expected = (
        Freshness.FRESH if age <= ttl else Freshness.STALE if age <= ttl + (max_stale or 0) else Freshness.UNUSABLE
    )
    assert evaluate_freshness(age, ttl, directives, stale) is expected


@given(AGES, AGES, AGES, AGES)
def test_no_entry_older_than_the_client_accepts_is_served(age: int, ttl: int, max_age: int, stale: int) -> None:
    if evaluate_freshness(age, ttl, CacheControl(max_age=max_age), stale) is not Freshness.UNUSABLE:
        assert age <= max_age


@given(AGES, AGES, DIRECTIVES, AGES)
def test_an_entry_is_served_stale_only_as_far_as_the_client_accepts(
    age: int, ttl: int, directives: CacheControl, stale: int
) -> None:
    """RFC 9111, section 5.2.1: max-age shortens the freshness lifetime, and max-stale extends it."""
    if evaluate_freshness(age, ttl, directives, stale) is Freshness.STALE:
        assert directives.max_stale is not None
        lifetime = ttl if directives.max_age is None else min(ttl, directives.max_age)
        assert ttl < age <= lifetime + directives.max_stale


@given(AGES, AGES, AGES, DIRECTIVES, AGES)
def test_an_entry_never_becomes_more_usable_with_age(
    age: int, by: int, ttl: int, directives: CacheControl, stale: int
) -> None:
    younger, older = (
        evaluate_freshness(age, ttl, directives, stale),
        evaluate_freshness(age + by, ttl, directives, stale),
    )
    assert WORSE.index(younger) <= WORSE.index(older)


@given(AGES, AGES, DIRECTIVES, AGES)
def test_max_age_restricts_and_max_stale_extends(age: int, ttl: int, directives: CacheControl, stale: int) -> None:
    rank = WORSE.index(evaluate_freshness(age, ttl, directives, stale))
    assert rank >= WORSE.index(evaluate_freshness(age, ttl, CacheControl(max_stale=directives.max_stale), stale))
    assert rank <= WORSE.index(evaluate_freshness(age, ttl, CacheControl(max_age=directives.max_age), stale))


@pytest.mark.parametrize(
    ("directives", "age", "use"),
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
def test_the_accepted_staleness_is_the_clients(directives: CacheControl, age: int, use: Freshness) -> None:
    assert evaluate_freshness(age, 100, directives, 50) is use
