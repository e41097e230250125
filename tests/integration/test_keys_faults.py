"""API keys at the workers of one router; tests/world has the faults of Redis and of the way to it."""

from pathlib import Path

import pytest

from router.core.cache.redis_keys import KEYS_APPLIED_KEY
from tests.support.key_routers import KEYS_CONFIG, create, revoke, use
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_every_worker_refuses_a_key_once_it_is_revoked(
    own_redis: RedisServer, tmp_path: Path, engines: EngineSet
) -> None:
    await own_redis.start()
    served = RouterProcess(
        tmp_path,
        router_config(own_redis.url, engines.as_config(), rest=KEYS_CONFIG).replace(
            "[router]", "[router]\nworkers = 2"
        ),
    )
    served.start()

    async def both_are_up() -> bool:
        return len(await own_redis.command("HKEYS", KEYS_APPLIED_KEY)) == 2

    try:
        await served.wait_until_ready()  # of one worker
        await eventually(both_are_up)
        async with http_client(served.url) as http:
            made = await create(http)
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
