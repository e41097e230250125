"""`cache.retention = "worth"`: what nobody asks for again leaves a full Redis early; what is asked for stays."""

from typing import Any

import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

FULL = 90_000
"""Seconds for which Redis keeps an entry by default: its TTL, and then as a stale entry."""

PROMPT = "The sea?"


@pytest_asyncio.fixture(loop_scope="session")
async def full_redis(own_redis: RedisServer) -> RedisServer:
    """Four fifths of its memory are in use, and nothing is evicted in the course of a test."""
    await own_redis.start()
    await own_redis.command("SET", "ballast", "x" * 8_000_000)
    info: Any = await own_redis.command("INFO", "memory")
    await own_redis.command("CONFIG", "SET", "maxmemory", int(info["used_memory"] / 0.8))
    return own_redis


async def started(make_router: MakeRouter, server: RedisServer, engines: EngineSet, cache: str) -> RouterServer:
    return await make_router(router_config(server.url, engines.as_config(), cache=cache))


async def left(server: RedisServer, key: str) -> int:
    """Seconds until Redis deletes an entry; 0 while there is none."""
    return max(0, int(await server.command("TTL", key)))


async def test_an_entry_that_nobody_asks_for_leaves_early_and_one_that_another_router_serves_stays(
    make_router: MakeRouter, full_redis: RedisServer, engines: EngineSet
) -> None:
    one, other = [await started(make_router, full_redis, engines, 'retention = "worth"') for _ in range(2)]
    asked: list[str] = []

    async def is_on_probation() -> str | None:
        """A new entry's key, once the router knows how much memory is in use; a slow answer may be kept for its TTL."""
        asked.append(f"{PROMPT} {len(asked)}")
        key = (await one.chat(asked[-1])).headers["x-cache-key"]
        return key if 0 < await eventually(lambda: left(full_redis, key)) < FULL / 2 else None

    key = await eventually(is_on_probation)
    hit_prompt = asked[-1]
    hit = await other.chat(hit_prompt)
    assert (hit.headers["x-cache"], hit.headers["x-cache-key"]) == ("HIT", key)
    assert "ttl=86" in hit.headers["cache-status"]  # it is fresh for a day, on probation or not

    async def has_its_full_lifetime() -> bool:
        return await left(full_redis, key) > FULL - 60

    await eventually(has_its_full_lifetime)
    unasked = await eventually(is_on_probation)
    assert unasked != key
    # The renewal changes the entry in Redis, and it is still the same response.
    again = await one.chat(hit_prompt)
    assert (again.headers["x-cache"], again.content) == ("HIT", hit.content)


async def test_by_default_every_entry_is_kept_for_its_ttl(
    make_router: MakeRouter, full_redis: RedisServer, engines: EngineSet
) -> None:
    router = await started(make_router, full_redis, engines, "")
    key = (await router.chat(PROMPT)).headers["x-cache-key"]
    assert await eventually(lambda: left(full_redis, key)) > FULL - 60
    statistics = await full_redis.command("INFO", "commandstats")
    assert statistics.get("cmdstat_pttl", {}).get("calls", 0) <= 1, "a router tries once whether it has the right"


async def test_with_free_memory_every_entry_is_kept_for_its_ttl(
    make_router: MakeRouter, own_redis: RedisServer, engines: EngineSet
) -> None:
    await own_redis.start()
    await own_redis.command("CONFIG", "SET", "maxmemory", "1gb")
    router = await started(make_router, own_redis, engines, 'retention = "worth"')

    async def info_was_read() -> bool:
        return "cmdstat_info" in await own_redis.command("INFO", "commandstats")

    await eventually(info_was_read)
    key = (await router.chat(PROMPT)).headers["x-cache-key"]
    assert await eventually(lambda: left(own_redis, key)) > FULL - 60
