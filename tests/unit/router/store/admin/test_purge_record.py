"""A purge reports how many replicas have its record."""

import asyncio
from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.net.redis.connect import open_client
from router.store.admin.purge import purge, purge_keys
from router.store.admin.purge_record import ReplicaAcks
from tests.support.cli_helpers import run_cli
from tests.support.entry_factory import entry_key, store_entry
from tests.support.ports import free_port
from tests.support.purge_log import logged_scopes
from tests.support.redis_deployments import Deployment
from tests.support.redis_process import RedisServer
from tests.support.router_server import router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACME = EntryFilter(tenant="acme")


class Replicated:
    """A Redis and its synchronized replica."""

    def __init__(self) -> None:
        port = free_port()
        self.primary = RedisServer("--repl-diskless-sync-delay", "0", port=port)
        self.replica = RedisServer("--replicaof", "127.0.0.1", str(port), port=free_port())
        self.url = self.primary.url

    async def start(self) -> None:
        await asyncio.gather(self.primary.start(), self.replica.start())
        await eventually(self._is_online)

    async def thaw_replica(self) -> None:
        """Returns when it has what the primary has."""
        self.replica.thaw()
        await eventually(self._has_all)

    async def _has_all(self) -> bool:
        logs = [await server.command("XLEN", PURGE_LOG_KEY) for server in (self.primary, self.replica)]
        return bool(logs[0] == logs[1])

    async def _is_online(self) -> bool:
        reply = await self.primary.command("INFO", "replication")
        return bool(reply.get("slave0", {}).get("state") == "online")

    def remove(self) -> None:
        self.primary.remove()
        self.replica.remove()


async def replicas_of_a_purge(url: str) -> ReplicaAcks | None:
    client: Any = open_client(url, timeout=5)
    try:
        return (await purge(client, ACME)).replicas
    finally:
        await client.aclose()


async def test_the_purge_waits_for_the_replicas_of_every_kind_of_redis(
    deployment: Deployment, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["deployment"]
    has_replica = name in ("sentinel", "cluster")
    assert await replicas_of_a_purge(deployment.url) == ReplicaAcks(int(has_replica), int(has_replica))


async def test_a_frozen_replica_has_not_acknowledged_and_delays_no_purge(tmp_path: Any) -> None:
    servers = Replicated()
    try:
        await servers.start()
        servers.replica.freeze()
        async with asyncio.timeout(5):
            assert await replicas_of_a_purge(servers.url) == ReplicaAcks(1, 0)
        path = tmp_path / "roundhouse.toml"
        path.write_text(router_config(servers.url, {"e": ("llama", "any", "http://127.0.0.1:1")}))
        result = await run_cli("cache", "purge", "--all", "--config", path)
        assert (
            result.stdout == "purged 0 entries and 0 generations in progress; 0 of 1 replica has received the purge\n"
        )
        await servers.thaw_replica()
        result = await run_cli("cache", "purge", "--all", "--json", "--config", path)
        assert result.json()["replicas"] == {"connected": 1, "acknowledged": 1}
        assert await servers.replica.command("XLEN", PURGE_LOG_KEY) == 3
    finally:
        servers.remove()


async def test_a_purge_of_many_keys_waits_for_a_frozen_replica_once_for_all_of_them() -> None:
    servers = Replicated()
    client: Any = open_client(servers.url, timeout=5)
    keys = [entry_key(number) for number in range(30)]
    try:
        await servers.start()
        for key in keys:
            await store_entry(client, key)
        servers.replica.freeze()
        async with asyncio.timeout(15):
            result = await purge_keys(client, keys)
        assert (result.entries, result.recorded, result.replicas) == (30, True, ReplicaAcks(1, 0))
        assert {scope.key for scope in await logged_scopes(client)} == set(keys)
        await servers.thaw_replica()
        assert (await purge_keys(client, keys)).replicas == ReplicaAcks(1, 1)
    finally:
        await client.aclose()
        servers.remove()


@pytest.mark.parametrize("command", ["info", "wait"])
async def test_where_redis_does_not_report_it_the_state_is_unknown_and_the_purge_succeeds(command: str) -> None:
    servers = Replicated()
    try:
        await servers.start()
        await servers.primary.command("ACL", "SETUSER", "default", f"-{command}")
        assert await replicas_of_a_purge(servers.url) is None
        assert await servers.primary.command("XLEN", PURGE_LOG_KEY) == 1
    finally:
        servers.remove()
