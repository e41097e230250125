"""/v1/responses through the router: its key, what is not shared, and OpenAI's own client."""

from typing import Any, Final

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.purge_log import keys_except_log
from tests.support.typed_answers import RESPONSES, post_typed, typed_events
from tests.support.waiting import collect
from tests.world.defaults import default_router
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

LOOK: Final[Any] = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    "strict": False,
}


def sdk(router: WorldRouter) -> AsyncOpenAI:
    http: Any = router.http  # the library wants its own fork of httpx
    return AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": "Be brief."},
        {"max_output_tokens": 5},
        {"temperature": 0},
        {"metadata": {"topic": "sea"}},
        {"user": "u"},
        {"service_tier": "flex"},
        {"store": False},
        {"request_id": "resp_mine"},
        {"reasoning": {"effort": "low"}},
        {"tools": [LOOK], "tool_choice": "required"},
        {"text": {"format": {"type": "json_object"}}},
        {"documents": [{"text": "The sea is salt."}]},
        {"input": [{"role": "user", "content": "The sea?"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
@scenario
async def test_a_changed_field_is_another_entry(world: World, fields: dict[str, Any]) -> None:
    router, _ = await default_router(world)
    assert (await post_typed(router, RESPONSES, "The sea?")).headers["x-cache"] == "MISS"
    answers = [await post_typed(router, RESPONSES, "The sea?", **fields) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]


@scenario
async def test_a_response_repeats_the_metadata_of_its_own_request(world: World) -> None:
    router, _ = await default_router(world)
    for topic in ("sea", "sky", "sea"):
        answer = await post_typed(router, RESPONSES, "The sea?", metadata={"topic": topic})
        assert answer.json()["metadata"] == {"topic": topic}
    assert answer.headers["x-cache"] == "HIT"


@scenario
async def test_a_hint_for_the_engines_own_cache_does_not_change_the_key(world: World) -> None:
    router, _ = await default_router(world)
    assert (await post_typed(router, RESPONSES, "The sea?")).headers["x-cache"] == "MISS"
    assert (await post_typed(router, RESPONSES, "The sea?", prompt_cache_key="k")).headers["x-cache"] == "HIT"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://x"}], "stream": True},
        {"conversation": "conv_1"},
    ],
    ids=["web-search", "mcp", "conversation"],
)
@scenario
async def test_a_response_that_depends_on_more_than_the_request_is_not_shared(
    world: World, fields: dict[str, Any]
) -> None:
    router, engines = await default_router(world)
    redis = world.redis.client
    before = (await engines.chat.stats())["received"]
    for _ in range(2):
        answer = await post_typed(router, RESPONSES, "The sea?", **fields)
        assert answer.status_code == 200
        assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "uncacheable")
        assert "x-cache-key" not in answer.headers
        assert "detail=uncacheable" in answer.headers["cache-status"]
    assert (await engines.chat.stats())["received"] == before + 2
    assert [key for key in await keys_except_log(redis) if not key.startswith("rh:1:response:")] == []


@scenario
async def test_an_engines_refusal_of_a_field_reaches_the_client(world: World) -> None:
    router, _ = await default_router(world, rest='[responses]\nttl = "0"\n')
    answer = await post_typed(router, RESPONSES, "The sea?", background=True)
    assert (answer.status_code, answer.headers["x-cache-reason"]) == (400, "uncacheable")
    assert answer.json()["error"]["param"] == "background"
    answer = await post_typed(router, RESPONSES, "The sea?", previous_response_id="resp_1", stream=True)
    assert (answer.status_code, answer.headers["x-cache-reason"]) == (404, "uncacheable")
    assert answer.json()["error"]["message"] == "Response with id 'resp_1' not found."


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_reasoning_and_tool_calls_survive_both_conversions(world: World, stream: bool) -> None:
    router, _ = await default_router(world)
    fields: dict[str, Any] = {"reasoning": {"effort": "low"}, "tools": [LOOK], "tool_choice": "required"}
    miss = await post_typed(router, RESPONSES, "The sea?", stream=stream, **fields)
    hit = await post_typed(router, RESPONSES, "The sea?", stream=not stream, **fields)
    assert [answer.headers["x-cache"] for answer in (miss, hit)] == ["MISS", "HIT"]
    streamed, complete_response = (miss, hit) if stream else (hit, miss)
    events, body = typed_events(streamed.content), complete_response.json()
    assert events[-1]["response"] == body
    assert [item["type"] for item in body["output"]] == ["reasoning", "function_call"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == body["output"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


# OpenAI's client


@scenario
async def test_openais_client_works_twice(world: World) -> None:
    router, _ = await default_router(world)
    client = sdk(router)
    texts = []
    for cache in ("MISS", "HIT"):
        raw = await client.responses.with_raw_response.create(model="llama", input="The sea?", instructions="Be brief.")
        assert raw.headers["x-cache"] == cache
        response = raw.parse()
        assert response.status == "completed"
        assert response.usage is not None
        texts.append(response.output_text)
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("first", [False, True], ids=["kept-as-json", "kept-as-stream"])
@scenario
async def test_openais_client_reads_the_same_in_every_form(world: World, first: bool) -> None:
    router, _ = await default_router(world)
    client = sdk(router)
    calls = []
    for stream in (first, not first, first):
        if stream:
            async with client.responses.stream(
                model="llama", input="The sea?", tools=[LOOK], tool_choice="required"
            ) as events:
                response: Any = await events.get_final_response()
        else:
            response = await client.responses.create(
                model="llama", input="The sea?", tools=[LOOK], tool_choice="required"
            )
        calls.append([(item.call_id, item.name, item.arguments) for item in response.output])
    assert calls[0] == calls[1] == calls[2]
    assert calls[0][0][1] == "look"


@scenario
async def test_openais_client_raises_on_a_stream_that_breaks(world: World) -> None:
    router, engines = await default_router(world)
    client = sdk(router)
    # Slow enough that the client has the first token before the engine fails.
    await engines.chat.set_faults({"fault": "drop", "after": 3}, {"fault": "tps", "rate": 100})
    stream = await client.responses.create(model="llama", input="The sea?", stream=True)
    seen: list[Any] = []
    with pytest.raises(openai.APIError, match="was interrupted"):
        await collect(stream, seen)
    kinds = [event.type for event in seen]
    assert "response.output_text.delta" in kinds
    assert "response.completed" not in kinds
