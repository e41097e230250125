"""What may be looked up and stored."""

from typing import Any

import pytest
from making import chat, embeddings, messages, responses

from router.core.control import NO_WISHES, Control
from router.core.policy import Decision, decide
from router.core.request import Request
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
