"""The local cache over HTTP: hits without a Redis command, and nothing that Redis no longer has.

What is deleted in Redis must be deleted in every router within a second; `GONE_WITHIN` is that second.
"""

from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio
import redis.asyncio as aioredis

from router.net.redis.liveness import PING_TIMEOUT
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.sse_answers import chat_text
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The sea?"
GONE_WITHIN = 1.0
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


async def is_not_local(router: RouterServer) -> bool:
    return await local_hit(router) is None


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


async def hash_reads(redis: Any) -> int:
    """The number of reads of entries in Redis."""
    stats = await redis.info("commandstats")
    return int(stats.get("cmdstat_hgetall", {}).get("calls", 0))


async def test_a_hit_from_the_local_cache_is_marked_and_sends_nothing_to_redis(
    router: RouterServer, redis: Any
) -> None:
    first = await held(router)

    async def hits_without_redis() -> list[httpx.Response] | None:
        # A machine that pauses for half a second makes the router read from Redis again, until the next ping.
        before = await hash_reads(redis)
        answers = [await router.chat(PROMPT, stream=stream) for stream in (False, True)]
        local = all(answer.headers["cache-status"].endswith(LOCAL) for answer in answers)
        return answers if local and await hash_reads(redis) == before else None

    for answer in await eventually(hits_without_redis):
        assert answer.headers["x-cache"] == "HIT"
        assert answer.headers["cache-status"].startswith("roundhouse; hit; ttl=")
        assert answer.headers["x-cache-key"] == first.headers["x-cache-key"]
        assert chat_text(answer) == chat_text(first)


async def test_the_first_hit_after_a_restart_comes_from_redis(make_router: MakeRouter, config: str) -> None:
    await held(await make_router(config))
    answer = await (await make_router(config)).chat(PROMPT)
    assert answer.headers["x-cache"] == "HIT"
    assert LOCAL not in answer.headers["cache-status"]


# -- what is gone from Redis is gone from every router ----------------------------------------------------------------


async def test_a_deleted_entry_is_gone_everywhere(pair: list[RouterServer], redis: Any) -> None:
    key = (await held(*pair)).headers["x-cache-key"]
    await redis.delete(key)
    for router in pair:
        await eventually(partial(is_gone, router), timeout=GONE_WITHIN)


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
async def test_after_flushall_every_entry_is_gone_everywhere(
    pair: list[RouterServer], redis: Any, command: str
) -> None:
    await held(*pair)
    await redis.execute_command(command)
    for router in pair:
        await eventually(partial(is_gone, router), timeout=GONE_WITHIN)


async def test_an_entry_that_another_replica_replaces_is_replaced_everywhere(pair: list[RouterServer]) -> None:
    old = (await held(*pair)).json()["id"]
    one, other = pair
    new = (await other.chat(PROMPT, headers={"cache-control": "no-cache"})).json()["id"]
    assert new != old

    async def is_new(router: RouterServer) -> bool:
        return bool((await stored(router)).json()["id"] == new)

    for router in (one, other):
        await eventually(partial(is_new, router), timeout=GONE_WITHIN)


async def test_a_router_never_serves_an_entry_that_it_has_replaced_itself(router: RouterServer) -> None:
    for _ in range(10):
        await held(router)
        new = (await router.chat(PROMPT, headers={"cache-control": "no-cache"})).json()["id"]
        assert (await stored(router)).json()["id"] == new


async def test_an_expired_entry_is_gone_everywhere(pair: list[RouterServer]) -> None:
    await pair[0].chat(PROMPT, headers={"x-cache-ttl": "1"})
    for router in pair:
        await eventually(partial(is_gone, router), timeout=1 + GONE_WITHIN)


async def test_an_entry_that_is_changed_by_hand_is_read_again(router: RouterServer, redis: Any) -> None:
    key = (await held(router)).headers["x-cache-key"]
    await redis.hset(key, "engine", "another")

    async def is_changed() -> bool:
        return bool((await stored(router)).headers.get("x-engine") == "another")

    await eventually(is_changed, timeout=GONE_WITHIN)


# -- without invalidations --------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def alone(own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter) -> RouterServer:
    """A router with its own Redis."""
    await own_redis.start()
    return await make_router(router_config(own_redis.url, engines.as_config()).replace('"2500ms"', '"100ms"'))


async def test_changes_during_a_cut_of_the_listener_connection_are_not_missed(
    alone: RouterServer, own_redis: RedisServer
) -> None:
    key = (await held(alone)).headers["x-cache-key"]
    client: Any = aioredis.Redis.from_url(own_redis.url, decode_responses=True)
    async with client, client.pipeline(transaction=True) as both:
        for listening in await client.client_list():
            if "B" in listening["flags"]:
                both.client_kill_filter(_id=listening["id"])
        both.delete(key)
        killed, _ = await both.execute()
    assert killed == 1
    await eventually(partial(is_gone, alone), timeout=GONE_WITHIN)
    await held(alone)


async def test_without_the_listener_connection_the_local_cache_is_dropped_and_recovers_by_itself(
    alone: RouterServer, own_redis: RedisServer
) -> None:
    await held(alone)
    client: Any = aioredis.Redis.from_url(own_redis.url, decode_responses=True)
    async with client:
        (listening,) = [each for each in await client.client_list() if "B" in each["flags"]]
        await client.client_kill_filter(_id=listening["id"])
    await eventually(partial(is_not_local, alone), timeout=GONE_WITHIN)
    await eventually(partial(local_hit, alone))


async def test_nothing_is_served_from_a_killed_redis_and_the_local_cache_recovers_with_it(
    alone: RouterServer, own_redis: RedisServer
) -> None:
    await held(alone)
    own_redis.kill()
    await eventually(partial(is_not_local, alone), timeout=GONE_WITHIN)
    answer = await alone.chat(PROMPT)
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "BYPASS")
    await own_redis.start()
    # Redis is empty. A request that starts before the router knows that is not stored, since purges may be lost too.
    await eventually(lambda: _has_status(alone, "HIT"))
    await held(alone)


async def test_nothing_is_served_from_the_local_cache_once_redis_is_silent_for_too_long(
    alone: RouterServer, own_redis: RedisServer
) -> None:
    await held(alone)
    own_redis.freeze()
    await eventually(partial(is_not_local, alone), timeout=PING_TIMEOUT + GONE_WITHIN)
    for _ in range(5):
        assert (await alone.chat(PROMPT)).headers["x-cache"] == "BYPASS"
    own_redis.thaw()
    await eventually(lambda: _has_status(alone, "HIT"))
    await held(alone)


async def _has_status(router: RouterServer, *statuses: str) -> bool:
    return (await router.chat(PROMPT)).headers["x-cache"] in statuses


# -- without a local cache; tenants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", ['"0B"', "0"])
async def test_a_local_cache_of_zero_bytes_is_disabled(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, nothing: str
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), cache=f"local = {nothing}"))
    await router.chat(PROMPT)
    for _ in range(20):
        answer = await router.chat(PROMPT)
        assert answer.headers["x-cache"] == "HIT"
        assert LOCAL not in answer.headers["cache-status"]


async def test_tenants_cannot_see_the_local_entries_of_others(make_router: MakeRouter, config: str) -> None:
    rest = '\n[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "purger"\n'
    router = await make_router(config + rest)
    acme, other = {"x-tenant-id": "acme"}, {"x-tenant-id": "purger"}
    await router.chat(PROMPT, headers=acme)
    await eventually(lambda: local_hit(router, **acme))
    assert (await stored(router, **other)).status_code == 504
    await router.chat(PROMPT, headers=other)
    answer = await eventually(lambda: local_hit(router, **other))
    assert answer.headers["x-cache-key"].startswith("rh:1:purger:")


async def test_redis_counts_hits_of_the_local_copy_as_a_use_of_the_entry(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    # Each use counts one.
    for name, value in (("maxmemory-policy", "allkeys-lfu"), ("lfu-log-factor", 0), ("lfu-decay-time", 1000)):
        await own_redis.command("CONFIG", "SET", name, value)
    router = await make_router(router_config(own_redis.url, engines.as_config()))
    key = (await router.chat(PROMPT)).headers["x-cache-key"]
    await eventually(lambda: own_redis.command("EXISTS", key))
    written = int(await own_redis.command("OBJECT", "FREQ", key))
    hits_of_redis = 0
    while not (answer := await stored(router)).headers["cache-status"].endswith(LOCAL):
        assert answer.headers["x-cache"] == "HIT"
        hits_of_redis += 1

    async def is_counted() -> bool:
        return bool(int(await own_redis.command("OBJECT", "FREQ", key)) == written + hits_of_redis + 1)

    await eventually(is_counted)
