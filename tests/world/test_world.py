"""The world itself: time, processes, Redis, and what fails a scenario."""

import asyncio
import time

import httpx
import pytest

from tests.simulation.clock import EPOCH
from tests.support.router_server import router_config
from tests.support.sse_answers import chat_text
from tests.world.scenario import World, scenario


def test_a_scenario_begins_at_the_same_time_and_an_hour_passes_at_once() -> None:
    @scenario
    async def waits(_: World) -> None:
        assert time.time() == EPOCH
        await asyncio.sleep(3600)
        assert (time.time() - EPOCH, time.monotonic(), time.monotonic_ns()) == (3600, 3600, 3600 * 10**9)

    real = time.perf_counter()
    waits()
    assert time.perf_counter() - real < 60
    assert time.time() > EPOCH + 7200


@scenario
async def test_an_engine_freezes_ends_and_starts_again(world: World) -> None:
    engine = await world.engine()
    engine.freeze()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.stats(), 5)
    engine.thaw()
    assert (await engine.stats())["received"] == 0
    engine.kill()
    with pytest.raises(httpx.TransportError):
        await engine.stats()
    await engine.start()
    assert (await engine.stats())["received"] == 0


@scenario
async def test_a_router_that_is_killed_and_started_again_has_lost_its_memory_and_not_its_redis(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    text = chat_text(await router.chat("The sea?"))
    await asyncio.sleep(1)  # it is stored after the response
    router.kill()
    with pytest.raises(httpx.TransportError):
        await router.chat("The sea?")
    await router.start()
    again = await router.chat("The sea?")
    assert (again.headers["x-cache"], chat_text(again)) == ("HIT", text)
    assert "detail=local" not in again.headers["cache-status"]


@scenario
async def test_redis_stops_freezes_and_refuses_writes(world: World) -> None:
    redis = world.redis
    assert await redis.client.set("a", "b")
    redis.read_only = True
    with pytest.raises(Exception, match="read only"):
        await redis.client.set("a", "c")
    redis.read_only, redis.is_full = False, True
    with pytest.raises(Exception, match="maxmemory"):
        await redis.client.set("a", "c")
    redis.is_full = False
    redis.freeze()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(redis.client.get("a"), 5)
    redis.thaw()
    assert await redis.client.get("a") == "b"
    redis.stop()
    with pytest.raises(Exception, match="nobody listens"):
        await redis.client.get("a")
    redis.start()
    assert await redis.client.get("a") is None


def test_what_fails_in_a_process_fails_the_scenario() -> None:
    @scenario
    async def fails(world: World) -> None:
        engine = await world.engine()
        world.loop.deliver(engine.process, 1.0, lambda: 1 // 0)
        await asyncio.sleep(2)

    with pytest.raises(AssertionError, match="integer division"):
        fails()
