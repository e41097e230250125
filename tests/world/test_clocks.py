"""Routers with wrong wall clocks: an entry has the same age for all of them."""

import asyncio
import time

import httpx

from tests.support.router_server import router_config
from tests.support.time_travel import backdate_entry
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

AN_HOUR = 3600
PROMPT = "The sea?"


async def routers(world: World, ttl: str) -> list[WorldRouter]:
    """Their wall clocks are an hour slow, right, and an hour fast."""
    engines = await world.engines()
    text = router_config(world.redis.url, engines.as_config(), cache=f'ttl = "{ttl}"\nstale_if_error = 0')
    return [await world.router(text, clock=skew) for skew in (-AN_HOUR, 0, AN_HOUR)]


async def stored(router: WorldRouter, prompt: str = PROMPT, directives: str = "") -> httpx.Response:
    """The stored response, or 504."""
    return await router.chat(prompt, headers={"cache-control": f"only-if-cached{directives}"})


@scenario
async def test_an_entry_has_the_same_age_whichever_router_stored_or_serves_it(world: World) -> None:
    redis, all_routers = world.redis.client, await routers(world, "10m")
    for number, writer in enumerate(all_routers):
        prompt = f"{PROMPT} {number}"
        answer = await writer.chat(prompt)
        assert answer.headers["x-cache"] == "MISS"
        key = answer.headers["x-cache-key"]
        await backdate_entry(redis, key, 100)
        assert abs(float(await redis.hget(key, "created")) + 100 - time.time()) < 2, "as Redis counts the time"
        await asyncio.sleep(0.1)
        for reader in all_routers:
            hit = await stored(reader, prompt)
            assert hit.headers["x-cache"] == "HIT", (number, reader.name)
            assert 99 <= int(hit.headers["age"]) < 103, (number, reader.name)
            assert (await stored(reader, prompt, ", max-age=60")).status_code == 504, (number, reader.name)


@scenario
async def test_an_entry_expires_for_all_routers_at_the_same_time(world: World) -> None:
    *_, fast = all_routers = await routers(world, "10s")
    assert (await fast.chat(PROMPT)).headers["x-cache"] == "MISS"
    await asyncio.sleep(9)
    assert [(await stored(reader)).status_code for reader in all_routers] == [200] * 3
    await asyncio.sleep(1.1)
    assert [(await stored(reader)).status_code for reader in all_routers] == [504] * 3
