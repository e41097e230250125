"""API keys while Redis or the way to it fails: known keys work, nothing is open, and no revoked key comes back."""

import asyncio

from router.core.cache.redis_keys import KEYS_RECORDS_KEY
from tests.support.key_routers import CONFIGURED_KEY, KEYS_CONFIG, create, listed, revoke, statuses, use
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario


def config_for(url: str, engine: WorldEngine) -> str:
    return router_config(url, {"one": ("llama", "any", engine.url)}, rest=KEYS_CONFIG)


async def becomes(status: int, key: str, router: WorldRouter) -> None:
    async def has_status() -> bool:
        return await statuses(key, router) == [status]

    await eventually(has_status)


@scenario
async def test_known_keys_work_while_redis_is_down_and_none_can_be_revoked(world: World) -> None:
    engine = await world.engine()
    router = await world.router(config_for(world.redis.url, engine))
    made = await create(router.http)
    world.redis.stop()
    assert await statuses(made["key"], router) + await statuses(CONFIGURED_KEY, router) == [200, 200]
    assert await statuses("rh-unknown", router) == [401]
    answer = await revoke(router.http, made["key_id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
    await router.reload(config_for(world.redis.url, engine))
    assert await statuses(made["key"], router) == [200]


@scenario
async def test_a_restarted_redis_without_its_data_gets_the_keys_back_and_the_revoked_ones_as_revoked(
    world: World,
) -> None:
    engine = await world.engine()
    router = await world.router(config_for(world.redis.url, engine))
    kept, revoked = await create(router.http, "kept"), await create(router.http, "revoked")
    await revoke(router.http, "revoked")
    world.redis.stop()
    world.redis.start()

    async def are_back() -> bool:
        return len(await world.redis.client.hkeys(KEYS_RECORDS_KEY)) == 3  # with the version

    await eventually(are_back)
    late = await world.router(config_for(world.redis.url, engine))
    for each in (router, late):
        assert await statuses(kept["key"], each) + await statuses(revoked["key"], each) == [200, 401]
    assert (await revoke(late.http, "kept")).json()["routers"] == {"confirmed": 2, "unconfirmed": []}
    assert await statuses(kept["key"], router, late) == [401, 401]


@scenario
async def test_a_router_that_starts_without_redis_knows_the_configured_keys_and_calls_no_other_invalid(
    world: World,
) -> None:
    engine = await world.engine()
    first = await world.router(config_for(world.redis.url, engine))
    made = await create(first.http)
    world.redis.stop()
    router = await world.router(config_for(world.redis.url, engine))
    assert await statuses(CONFIGURED_KEY, router) == [200]
    answer = await use(router.http, made["key"])
    assert (answer.status_code, answer.json()["error"]["code"], "retry-after" in answer.headers) == (
        503, "keys_unknown", True,
    )  # fmt: skip
    assert (await router.metrics())['llm_requests_rejected_total{reason="keys_unknown",tenant="none"}'] == 1
    world.redis.start()  # empty; the first router writes the records again
    await becomes(200, made["key"], router)
    assert await statuses("rh-unknown", router) == [401]


@scenario
async def test_a_router_that_hears_nothing_is_named_and_refuses_the_key_once_it_hears_again(world: World) -> None:
    engine, proxy = await world.engine(), await world.proxy()
    deaf = await world.router(config_for(proxy.url, engine))
    router = await world.router(config_for(world.redis.url, engine))
    made = await create(router.http)
    assert made["routers"]["confirmed"] == 2
    proxy.refuse("listening")
    proxy.hold("commands")
    routers = (await revoke(router.http, made["key_id"])).raise_for_status().json()["routers"]
    assert routers["confirmed"] == 1
    assert len(routers["unconfirmed"]) == 1
    assert await statuses(made["key"], router) == [401]
    proxy.release()
    await becomes(401, made["key"], deaf)
    again = (await revoke(router.http, made["key_id"])).raise_for_status().json()
    assert again["routers"] == {"confirmed": 2, "unconfirmed": []}


@scenario
async def test_a_revocation_whose_reply_is_lost_may_be_repeated(world: World) -> None:
    engine, proxy = await world.engine(), await world.proxy()
    cut_off = await world.router(config_for(proxy.url, engine))
    router = await world.router(config_for(world.redis.url, engine))
    made = await create(router.http)
    await listed(cut_off.http)  # its administrator's connection is open
    proxy.drop_replies("commands")
    task = asyncio.ensure_future(revoke(cut_off.http, made["key_id"]))
    while not task.done():
        await asyncio.wait([task], timeout=0.05)
        proxy.cut("commands")
    assert task.result().status_code == 503
    proxy.release()
    await eventually(lambda: cut_off.application._runtime.services.redis.pipeline.up)

    async def is_revoked() -> bool:
        return (await revoke(cut_off.http, made["key_id"])).status_code == 200

    await eventually(is_revoked)
    assert await statuses(made["key"], cut_off, router) == [401, 401]
