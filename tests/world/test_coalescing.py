"""One generation for equal concurrent requests, in one process and across processes."""

import asyncio
from collections import Counter
from typing import NamedTuple

import pytest

from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text, parse_events
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

BOTH = pytest.mark.parametrize("one", [True, False], ids=["one process", "two processes"])
"""Both clients use the same router, or each uses its own."""

USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
)
ANSWER = (
    ROLE_FRAME + chat_frame(content="one "),
    chat_frame(content="two"),
    chat_frame(content="", finish="stop") + USAGE + DONE_FRAME,
)
JSON_ANSWER = (
    b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"one two"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
)


class Pair(NamedTuple):
    """The routers of two clients, which may be one router, and their engine, which sends a chunk for each permit."""

    first: WorldRouter
    second: WorldRouter
    engine: ScriptedEngine

    @property
    def generations(self) -> int:
        return len(self.engine.bodies)


async def make_pair(world: World, *, one: bool = False, cache: str = "", rest: str = "") -> Pair:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    text = router_config(world.redis.url, {"scripted": ("llama", "any", engine.url)}, cache=cache, rest=rest)
    first = await world.router(text)
    return Pair(first, first if one else await world.router(text), engine)


def go(engine: ScriptedEngine, times: int = 1) -> None:
    for _ in range(times):
        engine.chunk_permits.release()


@scenario
async def test_two_hundred_identical_concurrent_requests_are_one_generation(world: World) -> None:
    engines = await world.engines()
    config = router_config(world.redis.url, engines.as_config())
    routers = [await world.router(config), await world.router(config)]
    await engines.chat.set_faults({"fault": "ttft", "ms": 300})
    answers = await asyncio.gather(*(routers[n % 2].chat("The sea?", stream=n % 3 == 0) for n in range(200)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({chat_text(answer) for answer in answers}) == 1
    seen = Counter(answer.headers["x-cache"] for answer in answers)
    assert seen["MISS"] == 1
    assert seen["COALESCED"] + seen["HIT"] == 199
    assert {answer.headers["x-engine"] for answer in answers} == {"llama-chat"}
    assert (await engines.chat.stats())["started"] == 1


@BOTH
@scenario
async def test_a_late_subscriber_gets_the_response_from_its_first_frame_and_then_follows_live(
    world: World, one: bool
) -> None:
    pair = await make_pair(world, one=one)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair.second, "x") as second:
            await second.read_until_text("one ")
            assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "COALESCED")
            assert second.headers["cache-status"] == "roundhouse; fwd=miss; collapsed"
            assert second.headers["x-cache-key"] == first.headers["x-cache-key"]
            assert second.headers["x-engine"] == "scripted"
            go(pair.engine)
            await second.read_until_text("one two")
            go(pair.engine)
            assert await second.read_to_end() == await first.read_to_end()
            assert second.received == b"".join(ANSWER).replace(USAGE, b"")
    assert pair.generations == 1


@BOTH
@scenario
async def test_a_json_client_gets_the_response_of_a_stream_when_it_ends(world: World, one: bool) -> None:
    pair = await make_pair(world, one=one)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        request = asyncio.ensure_future(pair.second.chat("x"))
        go(pair.engine, 2)
        await first.read_to_end()
        answer = await request
    assert answer.headers["x-cache"] in ("COALESCED", "HIT")
    assert chat_text(answer) == "one two"
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert pair.generations == 1


@BOTH
@scenario
async def test_a_stream_client_follows_a_json_generation_and_gets_the_complete_response(
    world: World, one: bool
) -> None:
    pair = await make_pair(world, one=one)
    pair.engine.pieces = (JSON_ANSWER[:9], JSON_ANSWER[9:])
    request = asyncio.ensure_future(pair.first.chat("x"))
    await eventually(lambda: pair.generations == 1)
    following = asyncio.ensure_future(pair.second.chat("x", stream=True, stream_options={"include_usage": True}))
    go(pair.engine)
    first, second = await request, await following
    assert (first.headers["x-cache"], chat_text(first)) == ("MISS", "one two")
    assert second.headers["x-cache"] in ("COALESCED", "HIT")
    assert chat_text(second) == "one two"
    assert second.content.endswith(DONE_FRAME)
    assert parse_events(second.content)[-1]["usage"]["completion_tokens"] == 2
    assert pair.generations == 1


@BOTH
@scenario
async def test_each_subscriber_gets_the_usage_event_only_if_it_asked_for_it(world: World, one: bool) -> None:
    pair = await make_pair(world, one=one)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair.second, "x", stream_options={"include_usage": True}) as second:
            await second.read_until_text("one ")
            go(pair.engine, 2)
            assert USAGE not in await first.read_to_end()
            assert (await second.read_to_end()).endswith(USAGE + DONE_FRAME)


@BOTH
@scenario
async def test_a_flight_continues_for_its_subscribers_when_its_first_client_disconnects(
    world: World, one: bool
) -> None:
    pair = await make_pair(world, one=one)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        second = open_stream(pair.second, "x")
        follower = await second.__aenter__()
        await follower.read_until_text("one ")
    go(pair.engine, 2)
    assert (await follower.read_to_end()).endswith(DONE_FRAME)
    await second.__aexit__(None, None, None)
    assert follower.text == "one two"
    assert pair.generations == 1
    assert not pair.engine.client_disconnected.is_set()
    assert (await pair.second.chat("x")).headers["x-cache"] == "HIT"


@scenario
async def test_a_client_that_leaves_before_the_first_token_of_anothers_generation_was_coalesced(world: World) -> None:
    engine = await world.engine(ttft=5.0)
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    first = asyncio.create_task(router.chat("The sea?", stream=True))
    await engine.stats(in_flight=1)
    joined = asyncio.create_task(router.chat("The sea?", stream=True))
    await asyncio.sleep(1)
    joined.cancel()
    counted = 'llm_cache_requests_total{model="llama",result="%s",tenant="default"}'

    async def results() -> list[str]:
        metrics = await router.metrics()
        return [result for result in ("miss", "coalesced") if metrics.get(counted % result)]

    assert await eventually(results) == ["coalesced"]
    assert (await first).headers["x-cache"] == "MISS"
    assert await results() == ["miss", "coalesced"]


@BOTH
@scenario
async def test_the_engine_is_freed_when_the_last_subscriber_disconnects(world: World, one: bool) -> None:
    pair = await make_pair(world, one=one)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair.second, "x") as second:
            await second.read_until_text("one ")
        assert not pair.engine.client_disconnected.is_set()
    await asyncio.wait_for(pair.engine.client_disconnected.wait(), 10)
    await eventually(lambda: no_claims(world))
    assert pair.generations == 1


async def no_claims(world: World) -> bool:
    return not [key async for key in world.redis.client.scan_iter("rh:1:claim:*")]


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_an_abandoned_generation_is_finished_and_stored_if_configured(world: World, stream: bool) -> None:
    pair = await make_pair(world, cache='on_abandon = "finish"')
    if not stream:
        pair.engine.pieces = (JSON_ANSWER[:9], JSON_ANSWER[9:])
    request = asyncio.ensure_future(pair.first.chat("x", stream=stream))
    await eventually(lambda: pair.generations == 1)
    request.cancel()
    retrying = asyncio.ensure_future(pair.second.chat("x", stream=stream))
    await eventually(lambda: followed_or_claimed(world))
    go(pair.engine, 2)
    retried = await retrying
    assert retried.headers["x-cache"] in ("COALESCED", "HIT")
    assert chat_text(retried) == "one two"
    assert (await pair.first.chat("x")).headers["x-cache"] == "HIT"
    assert pair.generations == 1


async def followed_or_claimed(world: World) -> bool:
    return bool([key async for key in world.redis.client.scan_iter("rh:1:claim:*")])


@scenario
async def test_an_abandoned_generation_that_cannot_be_stored_is_cancelled(world: World) -> None:
    pair = await make_pair(world, one=True, cache='on_abandon = "finish"')
    async with open_stream(pair.first, "x", headers={"cache-control": "no-store"}) as first:
        await first.read_until_text("one ")
    await asyncio.wait_for(pair.engine.client_disconnected.wait(), 10)


@pytest.mark.parametrize("directive", ["no-store", "no-cache"])
@BOTH
@scenario
async def test_a_request_that_bypasses_the_cache_joins_no_flight(world: World, one: bool, directive: str) -> None:
    pair = await make_pair(world, one=one)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair.second, "x", headers={"cache-control": directive}) as second:
            await eventually(lambda: pair.generations == 2)
            go(pair.engine, 4)
            await first.read_to_end()
            assert (await second.read_to_end()).endswith(DONE_FRAME)
            assert (second.headers["x-cache"], second.headers["x-cache-reason"]) == ("BYPASS", directive)


@scenario
async def test_another_tenant_does_not_join(world: World) -> None:
    tenants = '[auth]\nmode = "header"\n[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"'
    pair = await make_pair(world, one=True, rest=tenants)
    async with open_stream(pair.first, "x", headers={"x-tenant-id": "a"}) as first:
        await first.read_until_text("one ")
        async with open_stream(pair.first, "x", headers={"x-tenant-id": "b"}) as second:
            await eventually(lambda: pair.generations == 2)
            go(pair.engine, 4)
            await first.read_to_end()
            await second.read_to_end()
            assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "MISS")


# -- in-flight requests that fail -------------------------------------------------------------------------------------


@BOTH
@scenario
async def test_a_generation_that_breaks_off_ends_for_all_with_an_error_event(world: World, one: bool) -> None:
    pair = await make_pair(world, one=one)
    pair.engine.pieces = (ANSWER[0], b'data: {"error": {"message": "core died"}}\n\n' + DONE_FRAME)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair.second, "x") as second:
            await second.read_until_text("one ")
            go(pair.engine)
            for reader in (first, second):
                last = parse_events(await reader.read_to_end())[-1]
                assert last["error"]["code"] == "engine_failed"
                assert not reader.received.endswith(DONE_FRAME)
    assert (await pair.second.http.get("/healthz")).json()["engines"]["scripted"]["in_flight"] == 0


@BOTH
@scenario
async def test_a_subscriber_without_data_starts_again_when_the_flight_breaks_off(world: World, one: bool) -> None:
    pair = await make_pair(world, one=one)
    pair.engine.pieces = (ANSWER[0], b'data: {"error": {"message": "core died"}}\n\n' + DONE_FRAME)
    async with open_stream(pair.first, "x") as first:
        await first.read_until_text("one ")
        request = asyncio.ensure_future(pair.second.chat("x"))
        await wait_for_subscribers(pair)
        pair.engine.pieces = (JSON_ANSWER[:9], JSON_ANSWER[9:])
        go(pair.engine)
        await first.read_to_end()
        go(pair.engine)
        answer = await request
    assert (answer.status_code, chat_text(answer)) == (200, "one two")
    assert pair.generations == 2


async def wait_for_subscribers(pair: Pair) -> None:
    """Returns once a follower has had the time to attach: later requests join the same in-flight request."""
    async with open_stream(pair.second, "x") as third:
        await third.read_until_text("one ")


@scenario
async def test_an_engines_error_about_the_request_reaches_every_subscriber(world: World) -> None:
    engines = await world.engines()
    router = await world.router(router_config(world.redis.url, engines.as_config()))
    await engines.chat.set_faults({"fault": "status", "code": 400, "message": "too long"})
    answers = await asyncio.gather(*(router.chat("The sea?", stream=n % 2 == 0) for n in range(10)))
    assert {answer.status_code for answer in answers} == {400}
    assert len({answer.json()["error"]["message"] for answer in answers}) == 1


@BOTH
@scenario
async def test_a_flight_that_could_not_be_stored_leaves_nothing_behind(world: World, one: bool) -> None:
    pair = await make_pair(world, one=one)
    pair.engine.pieces = (ANSWER[0], DONE_FRAME)  # without a finish reason
    go(pair.engine)
    assert (await pair.first.chat("x", stream=True)).status_code == 200
    await eventually(lambda: no_claims(world))
    assert [key async for key in world.redis.client.scan_iter("rh:1:default:*")] == []


# -- bounds -----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_response_too_large_to_keep_can_no_longer_be_joined(world: World) -> None:
    pair = await make_pair(world, cache='max_entry = "1KiB"\nabandon = "0s"')
    pair.engine.pieces = (ANSWER[0], chat_frame(content="y" * 2000), *ANSWER[1:])
    async with open_stream(pair.first, "x") as first:
        go(pair.engine)
        await first.read_until_text("yyy")
        for number, router in enumerate((pair.first, pair.second), 2):
            request = asyncio.ensure_future(router.chat("x", stream=True))
            await eventually(lambda: pair.generations >= number)  # noqa: B023
            request.cancel()
