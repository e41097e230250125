"""A server that becomes a read-only replica behind an unchanged address."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.checks.check import check_all
from router.net.redis.errors import RedisBackendError
from router.settings import parse
from router.shared.connection.redis import open_backend
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, router_config
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
PROMPT = "The sea?"


@pytest_asyncio.fixture(loop_scope="session")
async def servers() -> AsyncIterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica."""
    # Without the delay, which is to let further replicas join the first transfer.
    primary, replica = (RedisServer("--repl-diskless-sync-delay", "0", port=free_port()) for _ in range(2))
    try:
        await primary.start()
        await replica.start()
        await replica.command("REPLICAOF", "127.0.0.1", primary.port)
        await eventually(lambda: is_linked(replica))
        yield primary, replica
    finally:
        primary.remove()
        replica.remove()


async def is_linked(replica: RedisServer) -> bool:
    reply = await replica.command("INFO", "replication")
    return bool(reply["role"] == "slave" and reply["master_link_status"] == "up")


async def has_caught_up(primary: RedisServer, replica: RedisServer) -> bool:
    """Whether the replica has what the primary has now."""
    wanted = (await primary.command("INFO", "replication"))["master_repl_offset"]
    return bool((await replica.command("INFO", "replication"))["slave_repl_offset"] >= wanted)


async def fail_over(primary: RedisServer, replica: RedisServer) -> None:
    """Exchanges the roles, without closing a connection, as in a planned failover: nothing older is lost."""
    await eventually(lambda: has_caught_up(primary, replica))
    await replica.command("REPLICAOF", "NO", "ONE")
    await primary.command("REPLICAOF", "127.0.0.1", replica.port)
    await eventually(lambda: is_linked(primary))


async def cache_status(router: RouterServer, prompt: str = PROMPT) -> str:
    answer = await router.chat(prompt)
    assert answer.status_code == 200
    return str(answer.headers["x-cache"])


async def reports_redis(router: RouterServer, redis: str) -> bool:
    return bool((await router.http.get("/healthz")).json()["redis"] == redis)


async def test_a_backend_reconnects_after_a_write_was_refused(servers: tuple[RedisServer, RedisServer]) -> None:
    async with TcpProxy(servers[0].socket) as proxy, aclosing(open_backend(proxy.url, timeout=5)) as link:
        script = "return redis.call('SET', KEYS[1], ARGV[1])"
        for write in (("SET", "k", "v"), ("EVAL", script, 1, "k", "v")):
            primary, replica = servers if proxy.target == servers[0].socket else servers[::-1]
            assert await link.execute([write], 5) == [b"OK"]
            topology = link.topology
            await fail_over(primary, replica)
            proxy.target = replica.socket
            (refused,) = await link.execute([write], 5)
            assert isinstance(refused, Exception)
            assert link.topology != topology, "listeners must reconnect"
            assert await link.execute([write], 5) == [b"OK"]


async def test_a_replica_is_not_accepted_as_a_server(servers: tuple[RedisServer, RedisServer]) -> None:
    async with aclosing(open_backend(f"redis://127.0.0.1:{servers[1].port}", timeout=5)) as link:
        with pytest.raises(RedisBackendError, match="read-only replica"):
            await link.execute([("GET", "k")], 5)


async def test_check_reports_that_the_server_is_a_replica(
    servers: tuple[RedisServer, RedisServer], engines: EngineSet
) -> None:
    text = router_config(f"redis://127.0.0.1:{servers[1].port}", engines.as_config())
    (finding, *_) = await check_all(parse(text, {}))
    assert (finding.what, finding.level) == ("redis", "error")
    assert "read-only replica" in finding.note


async def test_a_user_without_the_right_to_query_the_role_connects_nevertheless(own_redis: RedisServer) -> None:
    await own_redis.start()
    await own_redis.command("ACL", "SETUSER", "default", "-del")
    async with aclosing(open_backend(own_redis.url, timeout=5)) as link:
        assert await link.execute([("SET", "k", "v"), ("GET", "k")], 5) == [b"OK", b"v"]


async def test_a_router_follows_the_address_to_the_new_primary(
    servers: tuple[RedisServer, RedisServer], engines: EngineSet
) -> None:
    primary, replica = servers
    async with TcpProxy(primary.socket) as proxy:
        text = router_config(proxy.url, engines.as_config(), rest=ADMIN)
        async with RouterServer(text) as router:
            await eventually(lambda: serves_with_status(router, "HIT"))
            await fail_over(primary, replica)
            proxy.target = replica.socket
            await eventually(lambda: serves_from_cache(router, "Another?"))
            assert await reports_redis(router, "up")
            assert await cache_status(router) == "HIT", "the replica had it"
            # The listener's connection has moved too: changes on the new primary invalidate the local cache.
            await eventually(lambda: is_local_hit(router))
            key = (await router.chat(PROMPT)).headers["x-cache-key"]
            assert await replica.command("DEL", key) == 1
            await eventually(lambda: serves_with_status(router, "MISS"))
            # So has the admin connection, whose first write detects the change.
            await eventually(lambda: purges(router))


async def serves_with_status(router: RouterServer, status: str) -> bool:
    return await cache_status(router) == status


async def serves_from_cache(router: RouterServer, prompt: str) -> bool:
    return await cache_status(router, prompt) == "HIT"


async def is_local_hit(router: RouterServer) -> bool:
    return "local" in (await router.chat(PROMPT)).headers["cache-status"]


async def purges(router: RouterServer) -> bool:
    headers: Any = {"authorization": "Bearer admin-key"}
    answer = await router.http.post("/admin/cache/purge", json={"all": True}, headers=headers)
    return bool(answer.status_code == 200)


async def test_a_router_whose_redis_stays_read_only_reports_it_as_down_and_serves_without_it(
    servers: tuple[RedisServer, RedisServer], engines: EngineSet
) -> None:
    primary, replica = servers
    text = router_config(f"redis://127.0.0.1:{primary.port}", engines.as_config())
    async with RouterServer(text) as router:
        await eventually(lambda: serves_with_status(router, "HIT"))
        await fail_over(primary, replica)
        # A miss, whose response cannot be stored; a write of the router itself may have been refused before it.
        assert await cache_status(router, "Another?") in ("MISS", "BYPASS")
        await eventually(lambda: reports_redis(router, "down"))
        # The local cache is cleared when the listener loses its connection.
        await eventually(lambda: serves_with_status(router, "BYPASS"))
        assert (await router.metrics())["roundhouse_redis_up"] == 0
        await fail_over(replica, primary)
        await eventually(lambda: serves_with_status(router, "HIT"))
        assert await reports_redis(router, "up")
