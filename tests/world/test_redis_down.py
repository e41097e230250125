"""Redis refuses, hangs, dies or is full: requests continue at a bounded cost, and the cache recovers."""

import time
from typing import Any

import pytest

from tests.support.router_server import router_config
from tests.support.sse_answers import chat_text
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario


async def start(world: World) -> tuple[WorldRouter, WorldEngines]:
    """A router and its engines; a command of Redis takes 100 ms at most."""
    engines = await world.engines()
    text = router_config(world.redis.url, engines.as_config()).replace('"2500ms"', '"100ms"')
    return await world.router(text), engines


async def bypassed(router: WorldRouter, prompt: str = "The sea?", **fields: Any) -> float:
    """Sends a request that bypasses the cache; returns the seconds that it took."""
    started = time.perf_counter()
    answer = await router.chat(prompt, **fields)
    took = time.perf_counter() - started
    assert answer.status_code == 200
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "redis-down")
    assert answer.headers["cache-status"] == "roundhouse; fwd=bypass; detail=redis-down"
    assert "x-cache-key" not in answer.headers
    assert chat_text(answer)
    return took


async def cache_status(router: WorldRouter, prompt: str = "The sea?") -> str:
    answer = await router.chat(prompt)
    assert answer.status_code == 200
    return str(answer.headers["x-cache"])


async def is_served_from_the_cache(router: WorldRouter) -> bool:
    return await cache_status(router) == "HIT"


@scenario
async def test_a_router_starts_and_serves_without_redis_and_connects_later(world: World) -> None:
    world.redis.stop()
    router, _ = await start(world)
    for stream in (False, True):
        await bypassed(router, stream=stream)
    assert (await router.http.get("/healthz")).json()["redis"] == "down"
    assert (await router.metrics())["roundhouse_redis_up"] == 0
    world.redis.start()
    await eventually(lambda: is_served_from_the_cache(router))
    assert (await router.http.get("/healthz")).json()["redis"] == "up"
    assert (await router.metrics())["roundhouse_redis_up"] == 1


@scenario
async def test_a_frozen_redis_delays_one_request_by_its_timeout_and_the_others_not_at_all(world: World) -> None:
    router, _ = await start(world)
    assert await cache_status(router) == "MISS"
    assert await cache_status(router) == "HIT"
    world.redis.freeze()
    assert await bypassed(router, "The land?") == pytest.approx(0.1, abs=0.02)
    assert max([await bypassed(router, f"The sea {n}?") for n in range(10)]) < 0.05
    world.redis.thaw()
    await eventually(lambda: is_served_from_the_cache(router))


@scenario
async def test_redis_can_be_killed_and_restarted_while_requests_continue(world: World) -> None:
    router, _ = await start(world)
    assert await cache_status(router) == "MISS"
    world.redis.stop()
    await bypassed(router)
    world.redis.start()
    seen = []

    async def hit() -> bool:
        seen.append(await cache_status(router))
        return seen[-1] == "HIT"

    await eventually(hit)
    assert seen[0] != "HIT", "it restarted empty"


@scenario
async def test_a_full_redis_serves_its_entries_and_fails_no_request(world: World) -> None:
    router, _ = await start(world)
    assert await cache_status(router, "kept") == "MISS"
    assert await cache_status(router, "kept") == "HIT"
    world.redis.is_full = True
    for _ in range(3):
        assert await cache_status(router, "new") == "MISS"
        assert await cache_status(router, "kept") == "HIT"

    async def failed() -> bool:
        return (await router.metrics()).get('llm_cache_writes_total{result="failed"}') == 3

    await eventually(failed)
