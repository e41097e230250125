"""Streams of messages and responses whose engine dies while it reasons, and that another engine begins anew."""

import asyncio
import json
from typing import Any

import httpx

from router.core.endpoints.recording.sse import payload, split_events
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.scenario import World, scenario
from tests.world.thinkers import Thinker


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(data) for frame in split_events(answer.content) if (data := payload(frame)) is not None]


async def start(world: World, *, calls: bool = False) -> tuple[Thinker, Thinker, str]:
    thinkers = Thinker("a", b"thought of", calls=calls), Thinker("b", calls=calls)
    for thinker in thinkers:
        await thinker.engine.start()
    table = {thinker.name: ("llama", "any", thinker.engine.url) for thinker in thinkers}
    return *thinkers, router_config(world.redis.url, table)


@scenario
async def test_a_message_that_breaks_off_in_its_thinking_calls_its_tool_at_two_routers(world: World) -> None:
    first, second, config = await start(world, calls=True)
    first.may_break.clear()
    routers = [await world.router(config), await world.router(config)]
    body = {"model": "llama", "stream": True, "max_tokens": 50, "messages": [{"role": "user", "content": "x"}]}
    asked = [asyncio.create_task(router.post("/v1/messages", body)) for router in routers]
    await eventually(lambda: bool(first.bodies))
    await asyncio.sleep(0.1)
    first.may_break.set()
    answers = [await task for task in asked]
    assert [len(first.bodies), len(second.bodies)] == [1, 1]
    assert answers[0].content == answers[1].content
    assert b"thought of a" in answers[0].content
    assert b"\\n\\nthought of b" in answers[0].content
    events = events_of(answers[0])
    assert [event["message"]["id"] for event in events if event["type"] == "message_start"] == ["msg-a"]
    blocks = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert blocks == ["thinking", "tool_use"]
    assert events[-1]["type"] == "message_stop"
    metrics = [await router.metrics() for router in routers]
    name = 'llm_cache_writes_total{result="continued"}'
    assert [each.get(name, 0) for each in metrics].count(1) == 1


@scenario
async def test_a_response_that_breaks_off_in_its_reasoning_is_kept_with_the_answer_of_the_next_engine(
    world: World,
) -> None:
    _, second, config = await start(world)
    router = await world.router(config)
    answer = await router.post("/v1/responses", {"model": "llama", "stream": True, "store": True, "input": "x"})
    events = events_of(answer)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert final["id"] == events[0]["response"]["id"]
    assert [(item["type"], item["status"]) for item in final["output"]] == [
        ("reasoning", "completed"), ("message", "completed"),
    ]  # fmt: skip
    kept = await router.http.get(f"/v1/responses/{final['id']}")
    assert kept.json()["output"] == final["output"]
    follow_up = {"model": "llama", "stream": True, "input": "y", "previous_response_id": final["id"]}
    await router.post("/v1/responses", follow_up)
    # Of two items of reasoning in a row, vLLM would make two messages of the assistant.
    kinds = [item.get("type", "message") for item in second.bodies[-1]["input"]]
    assert kinds == ["message", "reasoning", "message", "message"]
