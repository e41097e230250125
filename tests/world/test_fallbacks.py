"""A model that cannot answer, and its fallback: reported to the client, and never stored."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.router_server import MISTRAL, router_config, with_fallback
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text
from tests.support.streaming_client import open_stream
from tests.support.time_travel import DAY, backdate_entry
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines
from tests.world.scenario import World, scenario

FAILS = {"fault": "status", "code": 500}


async def llama_with_fallback(world: World) -> tuple[WorldEngines, str]:
    """The engines, and a configuration of llama with the fallback mistral."""
    engines = await world.engines()
    table = {"llama": ("llama", "any", engines.chat.url), "mistral": ("mistral", "any", engines.mistral.url)}
    rest = '[breaker]\nfailures = 1000\ncooldown = "1h"'
    return engines, with_fallback(router_config(world.redis.url, table, rest=rest))


async def keys(redis: Any, pattern: str) -> list[str]:
    return [key async for key in redis.scan_iter(pattern)]


def is_from_fallback(answer: httpx.Response) -> bool:
    fallback = answer.headers.get("x-fallback")
    assert fallback in (None, "mistral")
    assert answer.status_code == 200
    assert answer.headers["x-engine"] == (fallback or "llama")
    return fallback is not None


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_the_fallback_serves_when_the_model_cannot_and_its_response_is_not_stored(
    world: World, stream: bool
) -> None:
    engines, text = await llama_with_fallback(world)
    redis = world.redis.client
    router = await world.router(text)
    await engines.chat.set_faults(FAILS)
    for _ in range(2):
        answer = await router.chat("The sea?", stream=stream)
        assert is_from_fallback(answer)
        assert (answer.headers["x-cache"], answer.content.endswith(DONE_FRAME)) == ("MISS", stream)
        assert answer.headers["x-cache-key"].startswith("rh:1:default:llama:")
        assert chat_text(answer)
    assert not await keys(redis, "rh:1:default:*")
    metrics = await router.metrics()
    assert metrics['llm_fallbacks_total{fallback="mistral",model="llama"}'] == 2
    assert metrics['llm_cache_writes_total{result="fallback"}'] == 2
    await engines.chat.clear_faults()
    assert not is_from_fallback(await router.chat("The sea?", stream=stream))
    hit = await router.chat("The sea?", stream=stream)
    assert (hit.headers["x-cache"], is_from_fallback(hit)) == ("HIT", False)


@scenario
async def test_the_fallbacks_engine_gets_its_own_model_name(world: World) -> None:
    engines, text = await llama_with_fallback(world)
    router = await world.router(text)
    await engines.chat.set_faults(FAILS)
    answer = await router.chat("The sea?")
    assert is_from_fallback(answer)
    assert answer.json()["model"] == MISTRAL
    mistrals = await router.chat("The sea?", model="mistral")
    assert (mistrals.headers["x-cache"], "x-fallback" in mistrals.headers) == ("MISS", False)


@scenario
async def test_an_engine_with_an_open_breaker_is_skipped_for_the_fallback(world: World) -> None:
    engines, text = await llama_with_fallback(world)
    router = await world.router(text.replace("failures = 1000", "failures = 3"))
    await engines.chat.set_faults(FAILS)
    assert is_from_fallback(await router.chat("The sea?"))
    before = (await engines.chat.stats())["received"]
    assert is_from_fallback(await router.chat("The sea?"))
    assert (await engines.chat.stats())["received"] == before
    assert (await router.http.get("/readyz")).status_code == 200


@scenario
async def test_an_engines_error_about_the_request_does_not_trigger_the_fallback(world: World) -> None:
    _, text = await llama_with_fallback(world)
    router = await world.router(text)
    answer = await router.chat("far too long " * 5000)
    assert (answer.status_code, "x-fallback" in answer.headers) == (400, False)


@scenario
async def test_after_the_first_token_there_is_no_fallback(world: World) -> None:
    engines, text = await llama_with_fallback(world)
    router = await world.router(text)
    await engines.chat.set_faults({"fault": "drop", "after": 3})
    answer = await router.chat("The sea?", stream=True)
    assert not is_from_fallback(answer)
    assert DONE_FRAME not in answer.content


@scenario
async def test_embeddings_have_no_fallback(world: World) -> None:
    engines, text = await llama_with_fallback(world)
    router = await world.router(text)
    await engines.chat.set_faults(FAILS)
    answer = await router.post("/v1/embeddings", {"model": "llama", "input": "x"})
    assert answer.status_code >= 400
    assert "x-fallback" not in answer.headers


@scenario
async def test_where_the_fallback_fails_too_a_stale_entry_is_served(world: World) -> None:
    engines, text = await llama_with_fallback(world)
    redis = world.redis.client
    router = await world.router(text)
    first = await router.chat("The sea?")
    await backdate_entry(redis, first.headers["x-cache-key"], DAY + 10)
    for engine in engines:
        await engine.set_faults(FAILS)
    stale = await router.chat("The sea?")
    assert (stale.headers["x-cache"], is_from_fallback(stale), chat_text(stale)) == ("STALE", False, chat_text(first))
    refused = await router.chat("The land?")
    assert (refused.status_code, "x-fallback" in refused.headers) == (502, False)


@scenario
async def test_two_models_may_be_the_fallback_of_each_other(world: World) -> None:
    engines, text = await llama_with_fallback(world)
    router = await world.router(with_fallback(text, "mistral", "llama"))
    await engines.mistral.set_faults(FAILS)
    assert (await router.chat("The sea?", model="mistral")).headers["x-fallback"] == "llama"
    await engines.chat.set_faults(FAILS)
    assert (await router.chat("The sea?")).status_code == 502


@scenario
async def test_a_subscriber_and_a_follower_see_that_the_response_is_from_another_model(world: World) -> None:
    engines = await world.engines()
    redis = world.redis.client
    slow = await world.scripted_engine(
        ROLE_FRAME, chat_frame(content="one "), chat_frame(content="two", finish="stop"), DONE_FRAME, paced=True
    )
    table = {"llama": ("llama", "any", engines.chat.url), "mistral": ("mistral", "any", slow.url)}
    text = with_fallback(router_config(world.redis.url, table))
    here, elsewhere = await world.router(text), await world.router(text)
    await engines.chat.set_faults(FAILS)
    slow.chunk_permits.release()
    async with open_stream(here, "The sea?") as leader:
        await leader.read_until_text("one ")
        assert leader.headers["x-fallback"] == "mistral"
        joining = [
            asyncio.create_task(router.chat("The sea?", stream=stream))
            for router in (here, elsewhere)
            for stream in (True, False)
        ]
        await eventually(lambda: keys(redis, "rh:1:flight:*"))
        for _ in slow.pieces:
            slow.chunk_permits.release()
        await leader.read_to_end()
        joined = await asyncio.gather(*joining)
    assert [answer.headers["x-cache"] for answer in joined] == ["COALESCED"] * 4
    assert [answer.headers.get("x-fallback") for answer in joined] == ["mistral"] * 4
    assert [answer.headers["x-engine"] for answer in joined] == ["mistral"] * 4
    assert {chat_text(answer) for answer in joined} == {"one two"}
    assert not await keys(redis, "rh:1:default:*")
