"""API keys at the workers of one router; tests/world has the faults of Redis and of the way to it."""

import itertools
from pathlib import Path
from typing import Any

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
            numbers = itertools.count()

            async def a_key_was_valid_and_then_revoked() -> bool:
                made = await create(http, f"key-{next(numbers)}")
                if not _is_confirmed(made):
                    return False
                assert await _statuses_of_new_connections(served, made["key"]) == {200}
                revoked = (await revoke(http, made["key_id"])).raise_for_status().json()
                if not _is_confirmed(revoked):
                    return False
                assert await _statuses_of_new_connections(served, made["key"]) == {401}
                return True

            await eventually(a_key_was_valid_and_then_revoked)
    finally:
        served.kill()


def _is_confirmed(change: dict[str, Any]) -> bool:
    """By both workers. One that pauses for seconds on a busy machine is named instead."""
    routers = change["routers"]
    assert routers["confirmed"] + len(routers["unconfirmed"]) == 2
    return bool(routers["unconfirmed"] == [])


async def _statuses_of_new_connections(served: RouterProcess, key: str) -> set[int]:
    """Of requests over connections of their own, so that every worker answers some."""
    found = set()
    for _ in range(6):
        async with http_client(served.url) as http:
            found.add((await use(http, key)).status_code)
    return found
