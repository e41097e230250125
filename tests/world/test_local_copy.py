"""The local cache over HTTP: hits without a Redis command, and nothing that Redis no longer has.

What is deleted in Redis must be deleted in every router within a second; `GONE_WITHIN` is that second.
"""

import asyncio
from functools import partial

import httpx
import pytest

from router.net.redis.liveness import PING_TIMEOUT
from tests.support.router_server import router_config
from tests.support.sse_answers import chat_text
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

PROMPT = "The sea?"
GONE_WITHIN = 1.0
LOCAL = "; detail=local"


async def stored(router: WorldRouter, prompt: str = PROMPT, **headers: str) -> httpx.Response:
    """The stored response, or 504: the request does not change anything."""
    return await router.chat(prompt, headers={"cache-control": "only-if-cached", **headers})


async def local_hit(router: WorldRouter, **headers: str) -> httpx.Response | None:
    """A response from the local cache, if it has one."""
    answer = await stored(router, **headers)
    return answer if answer.headers["cache-status"].endswith(LOCAL) else None


async def is_gone(router: WorldRouter) -> bool:
    return (await stored(router)).status_code == 504


async def is_not_local(router: WorldRouter) -> bool:
    return await local_hit(router) is None


async def held(*routers: WorldRouter) -> httpx.Response:
    """Makes every router cache an entry locally; returns the last response."""
    await routers[0].chat(PROMPT)
    for router in routers:
        answer: httpx.Response = await eventually(partial(local_hit, router))
    return answer


async def config(world: World, cache: str = "") -> str:
    engines = await world.engines()
    return router_config(world.redis.url, engines.as_config(), cache=cache)


async def two_routers(world: World) -> list[WorldRouter]:
    text = await config(world)
    return [await world.router(text), await world.router(text)]


@scenario
async def test_a_hit_from_the_local_cache_is_marked_and_sends_nothing_to_redis(world: World) -> None:
    router = await world.router(await config(world))
    first = await held(router)
    world.redis.freeze()
    for stream in (False, True):
        answer = await router.chat(PROMPT, stream=stream)
        assert answer.headers["cache-status"].endswith(LOCAL)
        assert answer.headers["x-cache"] == "HIT"
        assert answer.headers["cache-status"].startswith("roundhouse; hit; ttl=")
        assert answer.headers["x-cache-key"] == first.headers["x-cache-key"]
        assert chat_text(answer) == chat_text(first)


@scenario
async def test_the_first_hit_after_a_restart_comes_from_redis(world: World) -> None:
    text = await config(world)
    await held(await world.router(text))
    answer = await (await world.router(text)).chat(PROMPT)
    assert answer.headers["x-cache"] == "HIT"
    assert LOCAL not in answer.headers["cache-status"]


# -- what is gone from Redis is gone from every router ----------------------------------------------------------------


@scenario
async def test_a_deleted_entry_is_gone_everywhere(world: World) -> None:
    pair = await two_routers(world)
    key = (await held(*pair)).headers["x-cache-key"]
    await world.redis.client.delete(key)
    for router in pair:
        await eventually(partial(is_gone, router), timeout=GONE_WITHIN)


@scenario
async def test_an_entry_that_another_replica_replaces_is_replaced_everywhere(world: World) -> None:
    one, other = await two_routers(world)
    old = (await held(one, other)).json()["id"]
    new = (await other.chat(PROMPT, headers={"cache-control": "no-cache"})).json()["id"]
    assert new != old

    async def is_new(router: WorldRouter) -> bool:
        return bool((await stored(router)).json()["id"] == new)

    for router in (one, other):
        await eventually(partial(is_new, router), timeout=GONE_WITHIN)


@scenario
async def test_a_router_never_serves_an_entry_that_it_has_replaced_itself(world: World) -> None:
    router = await world.router(await config(world))
    for _ in range(10):
        await held(router)
        new = (await router.chat(PROMPT, headers={"cache-control": "no-cache"})).json()["id"]
        assert (await stored(router)).json()["id"] == new


@scenario
async def test_an_expired_entry_is_gone_everywhere(world: World) -> None:
    pair = await two_routers(world)
    await pair[0].chat(PROMPT, headers={"x-cache-ttl": "1"})
    for router in pair:
        await eventually(partial(is_gone, router), timeout=1 + GONE_WITHIN)


@scenario
async def test_an_entry_that_is_changed_by_hand_is_read_again(world: World) -> None:
    router = await world.router(await config(world))
    key = (await held(router)).headers["x-cache-key"]
    await world.redis.client.hset(key, "engine", "another")

    async def is_changed() -> bool:
        return bool((await stored(router)).headers.get("x-engine") == "another")

    await eventually(is_changed, timeout=GONE_WITHIN)


# -- without invalidations --------------------------------------------------------------------------------------------


@scenario
async def test_changes_during_a_cut_of_the_listener_connection_are_not_missed(world: World) -> None:
    proxy = await world.proxy()
    router = await world.router((await config(world)).replace(world.redis.url, proxy.url))
    key = (await held(router)).headers["x-cache-key"]
    proxy.cut("listening")
    await world.redis.client.delete(key)
    await eventually(partial(is_gone, router), timeout=GONE_WITHIN)
    await held(router)


@scenario
async def test_without_the_listener_connection_the_local_cache_is_dropped_and_recovers_by_itself(world: World) -> None:
    proxy = await world.proxy()
    router = await world.router((await config(world)).replace(world.redis.url, proxy.url))
    await held(router)
    proxy.refuse("listening")
    await eventually(partial(is_not_local, router), timeout=GONE_WITHIN)
    await asyncio.sleep(2)
    assert await is_not_local(router)
    proxy.release()
    await eventually(partial(local_hit, router))


@scenario
async def test_nothing_is_served_from_a_killed_redis_and_the_local_cache_recovers_with_it(world: World) -> None:
    router = await world.router((await config(world)).replace('"2500ms"', '"100ms"'))
    await held(router)
    world.redis.stop()
    await eventually(partial(is_not_local, router), timeout=GONE_WITHIN)
    answer = await router.chat(PROMPT)
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "BYPASS")
    world.redis.start()
    # Redis is empty. A request that starts before the router knows that is not stored, since purges may be lost too.
    await eventually(lambda: _has_status(router, "HIT"))
    await held(router)


@scenario
async def test_nothing_is_served_from_the_local_cache_once_redis_is_silent_for_too_long(world: World) -> None:
    router = await world.router((await config(world)).replace('"2500ms"', '"100ms"'))
    await held(router)
    world.redis.freeze()
    await eventually(partial(is_not_local, router), timeout=PING_TIMEOUT + GONE_WITHIN)
    for _ in range(5):
        assert (await router.chat(PROMPT)).headers["x-cache"] == "BYPASS"
    world.redis.thaw()
    await eventually(lambda: _has_status(router, "HIT"))
    await held(router)


async def _has_status(router: WorldRouter, *statuses: str) -> bool:
    return (await router.chat(PROMPT)).headers["x-cache"] in statuses


# -- without a local cache; tenants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", ['"0B"', "0"])
@scenario
async def test_a_local_cache_of_zero_bytes_is_disabled(world: World, nothing: str) -> None:
    router = await world.router(await config(world, f"local = {nothing}"))
    await router.chat(PROMPT)
    for _ in range(20):
        answer = await router.chat(PROMPT)
        assert answer.headers["x-cache"] == "HIT"
        assert LOCAL not in answer.headers["cache-status"]


@scenario
async def test_tenants_cannot_see_the_local_entries_of_others(world: World) -> None:
    text = await config(world)
    rest = '\n[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "purger"\n'
    router = await world.router(text + rest)
    acme, other = {"x-tenant-id": "acme"}, {"x-tenant-id": "purger"}
    await router.chat(PROMPT, headers=acme)
    await eventually(lambda: local_hit(router, **acme))
    assert (await stored(router, **other)).status_code == 504
    await router.chat(PROMPT, headers=other)
    answer = await eventually(lambda: local_hit(router, **other))
    assert answer.headers["x-cache-key"].startswith("rh:1:purger:")
