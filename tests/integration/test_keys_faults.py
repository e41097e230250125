"""API keys while Redis or the way to it fails: known keys work, nothing is open, and no revoked key comes back."""

import asyncio
from pathlib import Path

import pytest

from router.core.cache.redis_keys import KEYS_APPLIED_KEY, KEYS_RECORDS_KEY
from tests.support.fault_proxy import FaultProxy
from tests.support.key_routers import CONFIGURED_KEY, KEYS_CONFIG, create, listed, revoke, statuses, use
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def config_for(url: str, engines: EngineSet) -> str:
    return router_config(url, engines.as_config(), rest=KEYS_CONFIG)


async def becomes(status: int, key: str, router: RouterServer) -> None:
    async def has_status() -> bool:
        return await statuses(key, router) == [status]

    await eventually(has_status)


async def test_known_keys_work_while_redis_is_down_and_none_can_be_revoked(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    router = await make_router(config_for(own_redis.url, engines))
    made = await create(router.http)
    own_redis.kill()
    assert await statuses(made["key"], router) + await statuses(CONFIGURED_KEY, router) == [200, 200]
    assert await statuses("rh-unknown", router) == [401]
    answer = await revoke(router.http, made["key_id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
    assert await statuses(made["key"], router) == [200]


async def test_a_restarted_redis_without_its_data_gets_the_keys_back_and_the_revoked_ones_as_revoked(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    router = await make_router(config_for(own_redis.url, engines))
    kept, revoked = await create(router.http, "kept"), await create(router.http, "revoked")
    await revoke(router.http, "revoked")
    own_redis.kill()
    await own_redis.start()

    async def are_back() -> bool:
        return len(await own_redis.command("HKEYS", KEYS_RECORDS_KEY)) == 3  # with the version

    await eventually(are_back)
    late = await make_router(config_for(own_redis.url, engines))
    for each in (router, late):
        assert await statuses(kept["key"], each) + await statuses(revoked["key"], each) == [200, 401]
    assert (await revoke(late.http, "kept")).json()["routers"] == {"confirmed": 2, "unconfirmed": []}
    assert await statuses(kept["key"], router, late) == [401, 401]


async def test_a_router_that_starts_without_redis_knows_the_configured_keys_and_calls_no_other_invalid(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    first = await make_router(config_for(own_redis.url, engines))
    made = await create(first.http)
    own_redis.kill()
    router = await make_router(config_for(own_redis.url, engines))
    assert await statuses(CONFIGURED_KEY, router) == [200]
    answer = await use(router.http, made["key"])
    assert (answer.status_code, answer.json()["error"]["code"], "retry-after" in answer.headers) == (
        503, "keys_unknown", True,
    )  # fmt: skip
    await own_redis.start()  # empty; the first router writes the records again
    await becomes(200, made["key"], router)
    assert await statuses("rh-unknown", router) == [401]


async def test_a_router_that_hears_nothing_is_named_and_refuses_the_key_once_it_hears_again(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    proxy = FaultProxy(own_redis)
    await proxy.start()
    deaf = await make_router(config_for(proxy.url, engines))
    router = await make_router(config_for(own_redis.url, engines))
    made = await create(router.http)
    assert made["routers"]["confirmed"] == 2
    await proxy.refuse("listening")
    await proxy.hold("commands")
    routers = (await revoke(router.http, made["key_id"])).raise_for_status().json()["routers"]
    assert routers["confirmed"] == 1
    assert len(routers["unconfirmed"]) == 1
    assert await statuses(made["key"], router) == [401]
    await proxy.release()
    await becomes(401, made["key"], deaf)
    again = (await revoke(router.http, made["key_id"])).raise_for_status().json()
    assert again["routers"] == {"confirmed": 2, "unconfirmed": []}
    await proxy.stop()


async def test_a_revocation_whose_reply_is_lost_may_be_repeated(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    proxy = FaultProxy(own_redis)
    await proxy.start()
    cut_off = await make_router(config_for(proxy.url, engines))
    router = await make_router(config_for(own_redis.url, engines))
    made = await create(router.http)
    await listed(cut_off.http)  # its administrator's connection is open
    await proxy.drop_replies("commands")
    task = asyncio.ensure_future(revoke(cut_off.http, made["key_id"]))
    while not task.done():
        await asyncio.wait([task], timeout=0.05)
        proxy.cut("commands")
    assert task.result().status_code == 503
    await proxy.release()
    await eventually(lambda: cut_off.application._runtime._background_services._pipeline.up)

    async def is_revoked() -> bool:
        return (await revoke(cut_off.http, made["key_id"])).status_code == 200

    await eventually(is_revoked)
    assert await statuses(made["key"], cut_off, router) == [401, 401]
    await proxy.stop()


async def test_every_worker_refuses_a_key_once_it_is_revoked(
    own_redis: RedisServer, tmp_path: Path, engines: EngineSet
) -> None:
    await own_redis.start()
    served = RouterProcess(tmp_path, config_for(own_redis.url, engines).replace("[router]", "[router]\nworkers = 2"))
    served.start()

    async def both_are_up() -> bool:
        return len(await own_redis.command("HKEYS", KEYS_APPLIED_KEY)) == 2

    try:
        await served.wait_until_ready()  # of one worker
        await eventually(both_are_up)
        for number in range(3):
            async with http_client(served.url) as http:
                made = await create(http, f"ci-{number}")
                assert made["routers"] == {"confirmed": 2, "unconfirmed": []}
                assert await _statuses_of_new_connections(served, made["key"]) == {200}
                revoked = (await revoke(http, made["key_id"])).raise_for_status().json()
                assert revoked["routers"] == {"confirmed": 2, "unconfirmed": []}
                assert await _statuses_of_new_connections(served, made["key"]) == {401}
    finally:
        served.kill()


async def _statuses_of_new_connections(served: RouterProcess, key: str) -> set[int]:
    """Of requests over connections of their own, so that every worker answers some."""
    found = set()
    for _ in range(6):
        async with http_client(served.url) as http:
            found.add((await use(http, key)).status_code)
    return found
