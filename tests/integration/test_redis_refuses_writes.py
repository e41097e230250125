"""A Redis that takes no writes for the reasons that only Redis has. tests/world has a full one."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN: Final = {"authorization": "Bearer admin-key"}
REST: Final = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
ENTRY: Final = "rh:1:default:llama:0000000000000000:0000000000000000:00000000000000000000000000000000"


@pytest.fixture
def text(own_redis: RedisServer, engines: EngineSet) -> str:
    return router_config(own_redis.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def router(own_redis: RedisServer, text: str) -> AsyncIterator[RouterServer]:
    await own_redis.start()
    async with RouterServer(text) as started:
        yield started


async def health(router: RouterServer) -> dict[str, Any]:
    return dict((await router.http.get("/healthz")).json())


async def says(router: RouterServer, state: str) -> bool:
    return bool((await health(router))["redis"] == state)


async def purge(router: RouterServer) -> Any:
    return await router.http.post("/admin/cache/purge", json={"all": True}, headers=ADMIN)


async def test_roundhouse_cache_purge_of_a_full_redis_says_that_the_purge_is_not_recorded(
    router: RouterServer, own_redis: RedisServer, text: str, tmp_path: Path
) -> None:
    await own_redis.command("CONFIG", "SET", "maxmemory", "1")
    (tmp_path / "roundhouse.toml").write_text(text)
    result = await run_cli("cache", "purge", "--all", "--json", "--config", tmp_path / "roundhouse.toml")
    assert (result.code, json.loads(result.stdout)["recorded"]) == (1, False)
    assert "Redis is full, so the purge is not recorded" in result.stderr
    assert "does not answer" not in result.stderr


async def test_a_purge_that_makes_room_is_recorded(router: RouterServer, own_redis: RedisServer) -> None:
    for number in range(4):
        await router.chat(f"What is {number}? " + 60_000 * "x", max_tokens=1)
    await own_redis.command("EVAL", "return redis.call('SET', KEYS[1], string.rep('x', 1000000))", 1, ENTRY)
    used = (await own_redis.command("INFO", "memory"))["used_memory"]
    await own_redis.command("CONFIG", "SET", "maxmemory", used - 100_000)
    await eventually(lambda: says(router, "full"))
    assert (await purge(router)).json()["recorded"] is True


async def test_a_redis_without_replicas_or_disk_is_not_said_to_be_down(
    router: RouterServer, own_redis: RedisServer
) -> None:
    await own_redis.command("CONFIG", "SET", "min-replicas-to-write", "1")
    await eventually(lambda: says(router, "too-few-replicas"))
    answer = await purge(router)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_refuses_writes")
    assert answer.json()["error"]["message"] == "Redis has too few replicas: it takes no writes."
    await own_redis.command("CONFIG", "SET", "min-replicas-to-write", "0")
    (own_redis.folder / "dump.rdb").mkdir()  # where Redis writes its file
    await own_redis.command("CONFIG", "SET", "save", "3600 1")
    await own_redis.command("BGSAVE")
    await eventually(lambda: says(router, "cannot-save"))
    assert (await purge(router)).json()["error"]["message"] == "Redis cannot save its data: it takes no writes."
