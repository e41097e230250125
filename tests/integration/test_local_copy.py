"""The local cache and Redis itself: its invalidations, and how it counts uses. The scenarios are in tests/world.

What is deleted in Redis must be deleted in every router within a second; that it takes no longer is tested there.
"""

from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The sea?"
LOCAL = "; detail=local"


async def stored(router: RouterServer, prompt: str = PROMPT, **headers: str) -> httpx.Response:
    """The stored response, or 504: the request does not change anything."""
    return await router.chat(prompt, headers={"cache-control": "only-if-cached", **headers})


async def local_hit(router: RouterServer, **headers: str) -> httpx.Response | None:
    """A response from the local cache, if it has one."""
    answer = await stored(router, **headers)
    return answer if answer.headers["cache-status"].endswith(LOCAL) else None


async def is_gone(router: RouterServer) -> bool:
    return (await stored(router)).status_code == 504


async def held(*routers: RouterServer) -> httpx.Response:
    """Makes every router cache an entry locally; returns the last response."""
    await routers[0].chat(PROMPT)
    for router in routers:
        answer: httpx.Response = await eventually(partial(local_hit, router))
    return answer


@pytest_asyncio.fixture(loop_scope="session")
async def pair(config: str, make_router: MakeRouter) -> list[RouterServer]:
    """Two routers with one Redis."""
    return [await make_router(config), await make_router(config)]


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
async def test_after_flushall_every_entry_is_gone_everywhere(
    pair: list[RouterServer], redis: Any, command: str
) -> None:
    await held(*pair)
    await redis.execute_command(command)
    for router in pair:
        await eventually(partial(is_gone, router))


async def test_redis_counts_hits_of_the_local_copy_as_a_use_of_the_entry(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    # Each use counts one.
    for name, value in (("maxmemory-policy", "allkeys-lfu"), ("lfu-log-factor", 0), ("lfu-decay-time", 1000)):
        await own_redis.command("CONFIG", "SET", name, value)
    router, other = await make_router(router_config(own_redis.url, engines.as_config())), "The moon?"
    await held(router)  # from now on, what it gets from Redis is held: each request to Redis counts, and 255 at most
    key = (await router.chat(other)).headers["x-cache-key"]
    await eventually(lambda: own_redis.command("EXISTS", key))
    written = int(await own_redis.command("OBJECT", "FREQ", key))
    hits_of_redis = 0
    while not (answer := await stored(router, other)).headers["cache-status"].endswith(LOCAL):
        assert answer.headers["x-cache"] == "HIT"
        hits_of_redis += 1

    async def is_counted() -> bool:
        return bool(int(await own_redis.command("OBJECT", "FREQ", key)) == written + hits_of_redis + 1)

    await eventually(is_counted)
