"""A continued stream counts as one response: its limits, its usage, what it costs, and what is stored of it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
import pytest

from router.core.api_keys import hash_key, key_id
from router.core.cache.redis_keys import budget_key, usage_key
from router.shared.accounting.daily_sums import days_until, decode_sums
from tests.support.router_server import chat_body, router_config
from tests.support.sse_answers import chat_delta_text, parse_events
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, start_toys, toy_engines
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = "The sea is wide, and the möwe 🙂 flies over it."
USAGE = {"stream_options": {"include_usage": True}}
KEY = "sk-acme-1"
BY_KEY = {"authorization": f"Bearer {KEY}"}
TENANT = (
    f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(KEY.encode())}"]\n'
    "tokens_per_day = 5000\ntokens_per_minute = 5000"
)


class Routers(NamedTuple):
    """`broken`: its first engine breaks streams off, after 1100 bytes, 1900 and so on. `whole`: one engine."""

    broken: WorldRouter
    whole: WorldRouter
    first: ToyScript
    second: ToyScript


async def start(world: World, text: str, *engines: ToyScript) -> WorldRouter:
    """Starts a router that knows what the engines serve."""
    router = await world.router(text)
    for engine in engines:
        await engine.asked_for_models.wait()
    return router


async def start_routers(world: World) -> Routers:
    model = ToyModel(ANSWER, [3, 1, 2])
    first, second, alone = (ToyScript(model, name=name) for name in ("a", "b", "a"))
    pair, one = await start_toys(first, second), await start_toys(alone)
    broken = await start(world, router_config(world.redis.url, pair, rest=TENANT), first, second)
    whole = await start(world, router_config(world.redis.url, one, rest=TENANT), alone)
    return Routers(broken, whole, first, second)


async def ask(router: WorldRouter, *, store: bool = False, **fields: Any) -> httpx.Response:
    """A chat, or a completion if it has a `prompt`. At the same number of the engine's stream, its id is the same."""
    body = {"stream": True, "temperature": 0, **USAGE, **fields}
    headers = BY_KEY | ({} if store else {"cache-control": "no-store"})
    if "prompt" in body:
        return await router.http.post("/v1/completions", json={"model": "llama", **body}, headers=headers)
    return await router.http.post("/v1/chat/completions", json=chat_body("x", **body), headers=headers)


def summary_of(answer: httpx.Response) -> tuple[str, list[str], Any]:
    """The text, the finish reasons and the usage."""
    events = parse_events(answer.content)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    return chat_delta_text(events), reasons, events[-1]["usage"]


LIMITS: list[Mapping[str, Any]] = [
    {"max_tokens": 9},
    {"max_completion_tokens": 9},
    {"max_tokens": 8, "min_tokens": 7},
    {"max_tokens": 60, "stop": ["wide, and"]},
    {"max_tokens": 60, "stop": "möwe 🙂 f"},
    {"max_tokens": 60, "stop": ["over it", "e m"]},
    {"prompt": "x"},  # vLLM's limit is 16 tokens
    {"prompt": "x", "max_tokens": 9, "stop": ["sea is wide, and the"]},
    {"prompt": "x", "max_tokens": 60, "stop": ["sea is wide, and the"]},
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@scenario
async def test_limits_hold_across_the_seam_wherever_it_is(world: World, limit: Mapping[str, Any]) -> None:
    routers = await start_routers(world)
    expected = summary_of(await ask(routers.whole, **limit))
    continued = 0
    for after in range(600, 2400, 150):
        routers.first.breaks[:] = [Break(after)]
        routers.second.bodies.clear()
        answer = await ask(routers.broken, **limit)
        if b'"error"' in answer.content:  # broken off before the first token, where both were asked: no text yet
            raise AssertionError(answer.text)
        assert summary_of(answer) == expected, after
        continued += len(routers.second.bodies)
    assert continued >= 3


BY_TEXT: list[Mapping[str, Any]] = [
    {"max_tokens": 30},
    {"max_tokens": 30, "stop": ["zzzzzzzz"]},
    {"max_tokens": 60, "stop": ["flies over"]},
    {"min_tokens": 30},
    {"prompt": "x"},  # vLLM's limit is 16 tokens
]


@pytest.mark.parametrize("limit", BY_TEXT, ids=str)
@scenario
async def test_tokens_whose_text_is_held_back_are_not_counted_where_a_stream_goes_on_by_text(
    world: World, limit: Mapping[str, Any]
) -> None:
    """They are generated again. The engines hold back half characters, and what may be the begin of a stop string."""
    model = ToyModel(ANSWER, [1])
    first, second, third, alone = (ToyScript(model, name=name) for name in ("a", "b", "c", "a"))
    async with toy_engines(first, second, third) as pair, toy_engines(alone) as one:
        broken = await start(world, router_config(world.redis.url, pair, rest=TENANT), first, second, third)
        whole = await start(world, router_config(world.redis.url, one, rest=TENANT), alone)
        fields = {**limit, "new_option": 1}
        expected = summary_of(await ask(whole, **fields))
        # Before the last token of both: nothing goes on with a stream that lacks no more than its end.
        for after in range(1700, 2500 if "prompt" in limit else 5000, 250):
            first.breaks[:], second.breaks[:] = [Break(after)], [Break(1100)]
            second.bodies.clear()
            assert summary_of(await ask(broken, **fields)) == expected, after
            if "min_tokens" in limit and second.bodies:
                (body,) = second.bodies
                said = len(body["messages"][-1]["content"].encode())
                assert body["min_tokens"] == max(0, limit["min_tokens"] - said)


@pytest.mark.parametrize("by_text", [False, True])
@scenario
async def test_a_chat_without_a_limit_ends_at_the_default_of_its_engines(world: World, by_text: bool) -> None:
    model = ToyModel(ANSWER, [1])
    first, second = (ToyScript(model, name=name, chat_limit=24) for name in "ab")
    async with toy_engines(first, second) as pair:
        text = router_config(world.redis.url, pair, rest=TENANT)
        text = text.replace('name = "llama"\n', 'name = "llama"\ndefault_max_tokens = 24\n')
        router = await start(world, text, first, second)
        fields: dict[str, Any] = {"new_option": 1} if by_text else {}
        whole = summary_of(await ask(router, **fields))
        first.breaks[:] = [Break(2500)]
        assert summary_of(await ask(router, **fields)) == whole
    assert whole[1] == ["length"]
    (rest,) = second.bodies
    assert ("messages" in rest, "max_tokens" in first.bodies[0]) == (by_text, False)
    assert 0 < rest["max_tokens"] < 24


@scenario
async def test_a_tenant_is_charged_once_for_the_whole(world: World) -> None:
    redis = world.redis.client
    day = days_until(float((await redis.time())[0]), 1)[0]
    model = ToyModel(ANSWER, [3, 1, 2])
    first, second = ToyScript(model, Break(1500), name="a"), ToyScript(model, name="b")
    async with toy_engines(first, second) as pair:
        router = await start(world, router_config(world.redis.url, pair, rest=TENANT), first, second)
        reported = summary_of(await ask(router))[2]
        assert second.bodies
        metrics = await router.metrics()
        tokens = {
            kind: metrics[f'llm_tokens_total{{kind="{kind}",model="llama",tenant="acme"}}']
            for kind in ("prompt", "completion")
        }
        await eventually(lambda: redis.exists(budget_key("acme")))
    await router.stop()  # which writes what it has counted
    assert tokens == {"prompt": reported["prompt_tokens"], "completion": reported["completion_tokens"]}
    found = decode_sums(await redis.hgetall(usage_key("acme", day)))
    sums = found[key_id(hash_key(KEY.encode())), "llama"]
    assert set(found) == {(key_id(hash_key(KEY.encode())), "llama")}
    assert (sums["requests"], sums["prompt_tokens"], sums["completion_tokens"]) == (
        1, reported["prompt_tokens"], reported["completion_tokens"]
    )  # fmt: skip
    assert reported["total_tokens"] in {int(value) for value in (await redis.hgetall(budget_key("acme"))).values()}


@scenario
async def test_what_is_stored_is_what_an_unbroken_run_stores(world: World) -> None:
    routers = await start_routers(world)
    answers = []
    routers.first.breaks[:] = [Break(1500)]
    for seed, router in enumerate((routers.broken, routers.whole)):
        assert (await ask(router, store=True, seed=seed)).headers["x-cache"] == "MISS"

        async def is_stored(number: int = seed + 1) -> bool:
            return len([key async for key in world.redis.client.scan_iter("rh:1:acme:*", _type="hash")]) == number

        await eventually(is_stored)
        body = (await ask(router, store=True, seed=seed, stream=False, stream_options=None)).json()
        stream = await ask(router, store=True, seed=seed)
        assert stream.headers["x-cache"] == "HIT"
        answers.append((body, summary_of(stream), [json.dumps(event) for event in parse_events(stream.content)]))
    assert routers.second.bodies
    (broken, broken_told, broken_events), (whole, whole_told, whole_events) = answers
    assert broken == whole
    assert broken_told == whole_told
    # Where the seam is inside of a character, an event without text may be missing.
    assert [each for each in whole_events if each not in broken_events and '"content": ""' not in each] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"new_option": 1},  # so it goes on by text
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"bad_words": ["q"]},
        {"vllm_xargs": {"no_repeat": 2}},
    ],
    ids=str,
)
@scenario
async def test_what_one_engine_need_not_have_said_is_not_stored(world: World, fields: Mapping[str, Any]) -> None:
    routers = await start_routers(world)
    routers.first.breaks[:] = [Break(1500)]
    answer = await ask(routers.broken, store=True, **fields)
    assert summary_of(answer)[0] == ANSWER
    assert routers.second.bodies
    assert (await ask(routers.broken, store=True, **fields)).headers["x-cache"] == "MISS"
    assert (await routers.broken.metrics())['llm_cache_writes_total{result="continued"}'] == 1
