"""/v1/messages through the router: its key, what is not shared, and API keys as Anthropic's clients send them."""

from typing import Any, Final

import pytest

from router.api.access.auth import hash_key
from tests.support.purge_log import keys_except_log
from tests.support.router_server import chat_body
from tests.support.typed_answers import MESSAGES, RESPONSES, post_typed, typed_body, typed_events
from tests.world.defaults import default_router
from tests.world.scenario import World, scenario

LOOK: Final = {
    "name": "look",
    "input_schema": {"type": "object", "properties": {"where": {"type": "string"}}},
}
KEY: Final = "sk-acme-secret"


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be brief."}]},
        {"max_tokens": 5},
        {"temperature": 0},
        {"stop_sequences": ["sea"]},
        {"thinking": {"type": "adaptive"}},
        {"tools": [LOOK], "tool_choice": {"type": "any"}},
        {"documents": [{"text": "The sea is salt."}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "The sea?"}]}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
@scenario
async def test_a_changed_field_is_another_entry(world: World, fields: dict[str, Any]) -> None:
    router, _ = await default_router(world)
    assert (await post_typed(router, MESSAGES, "The sea?")).headers["x-cache"] == "MISS"
    answers = [await post_typed(router, MESSAGES, "The sea?", **fields) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]


@scenario
async def test_the_metadata_does_not_change_the_key(world: World) -> None:
    router, _ = await default_router(world)
    assert (await post_typed(router, MESSAGES, "The sea?", metadata={"user_id": "a"})).headers["x-cache"] == "MISS"
    assert (await post_typed(router, MESSAGES, "The sea?", metadata={"user_id": "b"})).headers["x-cache"] == "HIT"


@pytest.mark.parametrize(
    "fields",
    [{"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, {"container": "c"}],
    ids=["mcp", "container"],
)
@scenario
async def test_a_response_that_depends_on_more_than_the_request_is_not_shared(
    world: World, fields: dict[str, Any]
) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    for stream in (False, True, False):
        answer = await post_typed(router, MESSAGES, "The sea?", stream=stream, **fields)
        assert answer.status_code == 200
        assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "uncacheable")
    assert await keys_except_log(redis) == set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"thinking": {"type": "adaptive"}}, ["thinking", "text"]),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "look"}}, ["tool_use"]),
    ],
    ids=["thinking", "tools"],
)
@scenario
async def test_thinking_and_tool_calls_survive_both_conversions(
    world: World, stream: bool, fields: dict[str, Any], kinds: list[str]
) -> None:
    router, _ = await default_router(world)
    miss = await post_typed(router, MESSAGES, "The sea?", stream=stream, **fields)
    hit = await post_typed(router, MESSAGES, "The sea?", stream=not stream, **fields)
    assert [answer.headers["x-cache"] for answer in (miss, hit)] == ["MISS", "HIT"]
    streamed, complete_response = (miss, hit) if stream else (hit, miss)
    body = complete_response.json()
    assert [block["type"] for block in body["content"]] == kinds
    events = typed_events(streamed.content)
    pieces = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    for block in body["content"]:
        for name in {"thinking", "text", "signature"} & block.keys():
            assert "".join(piece.get(name, "") for piece in pieces) == block[name]
    assert events[-2]["usage"] == body["usage"]
    assert events[-2]["delta"]["stop_reason"] == body["stop_reason"]


# Keys


BY_KEY: Final = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(KEY.encode())}"]'


@scenario
async def test_a_key_may_be_sent_as_anthropics_clients_send_it(world: World) -> None:
    router, _ = await default_router(world, rest=BY_KEY)
    body = typed_body(MESSAGES, "The sea?")
    first = await router.post(MESSAGES, body, x_api_key=KEY)
    again = await router.post(MESSAGES, body, authorization=f"Bearer {KEY}")
    both = await router.post(MESSAGES, body, authorization=f"Bearer {KEY}", x_api_key=KEY)
    assert [answer.headers["x-cache"] for answer in (first, again, both)] == ["MISS", "HIT", "HIT"]
    assert first.headers["x-cache-key"].startswith("rh:1:acme:")


@scenario
async def test_the_header_is_not_accepted_elsewhere_nor_with_another_key(world: World) -> None:
    router, _ = await default_router(world, rest=BY_KEY)
    body = typed_body(MESSAGES, "The sea?")
    refused = [
        await router.post("/v1/chat/completions", chat_body("The sea?"), x_api_key=KEY),
        await router.post(RESPONSES, typed_body(RESPONSES, "The sea?"), x_api_key=KEY),
        await router.post(MESSAGES, body),
        await router.post(MESSAGES, body, x_api_key="sk-other"),
        await router.post(MESSAGES, body, x_api_key=KEY, authorization="Bearer sk-other"),
    ]
    assert [answer.status_code for answer in refused] == [401] * 5
    assert {answer.json()["error"]["code"] for answer in refused[:2]} == {"invalid_api_key"}
    assert {answer.json()["error"]["type"] for answer in refused[2:]} == {"authentication_error"}
