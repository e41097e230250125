"""What lives as long as the address of Redis: connections, entries in memory, and requests in flight."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from tests.support.router_server import chat_body, router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario

Change = Callable[[str], str]

TENANTS = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n'
TENANT = '[[tenant]]\nname = "beta"\n'
ACME, BETA = {"x-tenant-id": "acme"}, {"x-tenant-id": "beta"}


async def start(world: World, **options: str) -> tuple[WorldRouter, WorldEngines, str]:
    engines = await world.engines()
    config = router_config(world.redis.url, engines.as_config(), **options)
    return await world.router(config), engines, config


def source(answer: httpx.Response) -> str:
    """`local` for a hit from memory, `redis` for another; else the value of X-Cache."""
    if answer.headers["x-cache"] != "HIT":
        return answer.headers["x-cache"]
    return "local" if "detail=local" in answer.headers["cache-status"] else "redis"


async def change_is_noticed(world: World, router: WorldRouter, headers: dict[str, str]) -> None:
    key = (await router.chat("The sea?", headers=headers)).headers["x-cache-key"]
    await world.redis.client.delete(key)

    async def is_noticed() -> bool:
        return source(await router.chat("The sea?", headers=headers)) == "MISS"

    await eventually(is_noticed)


async def ask_until_local(router: WorldRouter, headers: dict[str, str] | None = None) -> None:
    async def is_local() -> bool:
        return source(await router.chat("The sea?", headers=headers or {})) == "local"

    await eventually(is_local)
    await asyncio.sleep(0.1)  # Redis may report the two commands that write an entry one by one, the second time late
    await eventually(is_local)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace('"llama-alias"', '"other-alias"'),
        lambda text: text.replace('"20ms"', '"30ms"').replace('"2500ms"', '"2s"'),
        lambda text: text.replace("[[model]]", "[timeouts]\nqueue = '7s'\n\n[[model]]", 1),
        lambda text: text.replace("[cache]", '[cache]\nlocal = "32MiB"\nretention = "worth"\nttl = "1h"'),
        lambda text: text + TENANT,
    ],
    ids=["nothing", "alias", "redis times", "timeouts", "cache", "tenant"],
)
@scenario
async def test_a_hit_from_memory_is_still_one_after_a_reload(world: World, change: Change) -> None:
    router, engines, config = await start(world)
    await ask_until_local(router)
    connections = set(world.redis.model.connections)
    await router.reload(change(config))
    assert source(await router.chat("The sea?")) == "local"
    await asyncio.sleep(5)
    assert set(world.redis.model.connections) <= connections  # the one that checks the rights at the start has ended
    assert (await engines.chat.stats())["received"] == 1


@pytest.mark.parametrize(
    ("change", "then"),
    [
        (lambda text: text.replace('revision = "1"', 'revision = "2"'), "MISS"),
        (lambda text: text.replace("[cache]", '[cache]\nlocal = "0"'), "redis"),
        (lambda text: text.replace("redis:6379", "redis:6379/0"), "redis"),
    ],
    ids=["revision", "no memory", "address"],
)
@scenario
async def test_what_a_reload_makes_invalid_is_not_served_from_memory(world: World, change: Change, then: str) -> None:
    router, _, config = await start(world)
    assert change(config) != config
    await ask_until_local(router)
    await router.reload(change(config))
    assert source(await router.chat("The sea?")) == then


@scenario
async def test_a_tenant_that_returns_gets_no_entry_that_was_deleted_meanwhile(world: World) -> None:
    router, engines, config = await start(world, rest=TENANTS)
    await ask_until_local(router, ACME)
    key = (await router.chat("The sea?", headers=ACME)).headers["x-cache-key"]
    await router.reload(config.replace(TENANTS, ""))
    assert source(await router.chat("The sea?")) == "MISS"  # of the tenant `default`
    await world.redis.client.delete(key)
    await router.reload(config)
    assert source(await router.chat("The sea?", headers=ACME)) == "MISS"
    assert (await engines.chat.stats())["received"] == 3


@scenario
async def test_the_memory_follows_the_changes_of_tenants_that_are_added_and_removed(world: World) -> None:
    router, engines, config = await start(world, rest=TENANTS)
    await ask_until_local(router, ACME)
    await router.reload(config + TENANT)
    assert source(await router.chat("The sea?", headers=ACME)) == "local"
    await ask_until_local(router, BETA)
    await router.reload(config)
    assert source(await router.chat("The sea?", headers=ACME)) == "local"
    await router.reload(config + TENANT)
    assert source(await router.chat("The sea?", headers=BETA)) == "local"
    for headers in (ACME, BETA):
        await change_is_noticed(world, router, headers)
    assert (await engines.chat.stats())["received"] == 4


@pytest.mark.parametrize("delay", [0, 0.005, 0.02, 0.1, 0.3, 1])
@scenario
async def test_a_tenant_that_is_added_while_redis_comes_back_is_listened_to(world: World, delay: float) -> None:
    router, _, config = await start(world, rest=TENANTS)
    await ask_until_local(router, ACME)
    world.redis.stop(loses_data=False)
    await asyncio.sleep(2)
    world.redis.start()
    await asyncio.sleep(delay)
    await router.reload(config + TENANT)
    for headers in (ACME, BETA):
        await ask_until_local(router, headers)
        await change_is_noticed(world, router, headers)


@scenario
async def test_a_frozen_redis_delays_a_reload_for_a_moment_only(world: World) -> None:
    router, _, config = await start(world, rest=TENANTS)
    await ask_until_local(router, ACME)
    world.redis.freeze()
    started = asyncio.get_running_loop().time()
    await router.reload(config + TENANT)
    assert asyncio.get_running_loop().time() - started < 3
    assert (await router.chat("The moon?", headers=BETA)).status_code == 200
    world.redis.thaw()
    for headers in (ACME, BETA):
        await ask_until_local(router, headers)
        await change_is_noticed(world, router, headers)


@scenario
async def test_an_entry_in_memory_keeps_the_time_to_live_that_it_was_stored_with(world: World) -> None:
    router, _, config = await start(world, cache='ttl = "60s"\nstale_if_error = "0s"')
    await ask_until_local(router)
    await router.reload(config.replace('"60s"', '"1h"'))
    assert source(await router.chat("The sea?")) == "local"
    await asyncio.sleep(60)
    assert source(await router.chat("The sea?")) == "MISS"


@scenario
async def test_a_purge_after_a_reload_reaches_the_memory(world: World) -> None:
    router, _, config = await start(world)
    await ask_until_local(router)
    await router.reload(config)
    other = await world.router(config)
    key = (await other.chat("The sea?")).headers["x-cache-key"]
    await world.redis.client.delete(key)

    async def is_gone() -> bool:
        return source(await router.chat("The sea?")) == "MISS"

    await eventually(is_gone)


@scenario
async def test_a_request_joins_a_generation_before_the_reload_without_redis_too(world: World) -> None:
    router, engines, config = await start(world)
    await engines.chat.set_faults({"fault": "tps", "rate": 12})
    world.redis.stop()
    body = chat_body("The sea?", stream=True, max_tokens=75, min_tokens=75)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as first:
        await router.reload(config.replace('"llama-alias"', '"other-alias"'))
        async with router.http.stream("POST", "/v1/chat/completions", json=body) as second:
            assert second.headers["x-cache"] == "COALESCED"
            assert await second.aread() == await first.aread()
    assert (await engines.chat.stats())["received"] == 1
    await eventually(lambda: not router.application._retiring)


@scenario
async def test_another_address_of_redis_closes_the_connections_when_the_last_request_has_ended(world: World) -> None:
    router, engines, config = await start(world)
    await router.chat("The moon?")
    await engines.chat.set_faults({"fault": "tps", "rate": 12})
    await asyncio.sleep(5)  # the connection that checks the rights at the start is closed
    before = set(world.redis.model.connections)
    body = chat_body("The sea?", stream=True, max_tokens=75, min_tokens=75)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        await router.reload(config.replace("redis:6379", "redis:6379/0"))
        assert before <= set(world.redis.model.connections)
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
    await eventually(lambda: not set(world.redis.model.connections) & before)
    await asyncio.sleep(5)
    assert len(world.redis.model.connections) == len(before)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_frozen", [False, True])
@scenario
async def test_a_router_that_is_to_stop_during_a_change_of_the_address_of_redis_ends_its_requests_and_closes_both(
    world: World, is_frozen: bool, is_cut: bool
) -> None:
    router, engines, config = await start(world)
    await router.chat("The moon?")
    await engines.chat.set_faults({"fault": "tps", "rate": 12})
    body = chat_body("The sea?", stream=True, max_tokens=75, min_tokens=75)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if is_frozen:
            world.redis.freeze()
        reload = asyncio.create_task(router.reload(config.replace("redis:6379", "redis:6379/0")))
        await asyncio.sleep(0.01)
        router.application.drain()
        await reload
        assert len(router.application._retiring) == 1
        assert (await router.http.get("/readyz")).status_code == 503
        if not is_cut:
            assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
        await router.stop()
    world.redis.thaw()
    await eventually(lambda: not world.redis.model.connections)
    await engines.chat.stats(in_flight=0)


@scenario
async def test_two_hundred_reloads_leave_nothing_behind(world: World) -> None:
    router, _, config = await start(world)
    await ask_until_local(router)
    await asyncio.sleep(5)
    connections = set(world.redis.model.connections)
    services = router.application._runtime.services
    for number in range(200):
        await router.reload(config.replace('"llama-alias"', f'"alias-{number}"'))
    await eventually(lambda: not router.application._retiring)
    assert set(world.redis.model.connections) == connections
    assert router.application._runtime.services is services
    assert len(services._live) == 1
    assert source(await router.chat("The sea?")) == "local"
