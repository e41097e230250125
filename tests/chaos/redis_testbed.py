"""The Redis of the chaos test: one server, Sentinels or a cluster, behind a proxy, and the faults applied to it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Any, Final

import redis.exceptions

from router.net.redis.handshake import CLIENT_NAME
from router.shared.inflight.claim import LEASE_DURATION
from tests.chaos.outages import OutageKind, Outages
from tests.support.ports import free_port
from tests.support.proxy_process import ConnectionFault, ProxyProcess
from tests.support.redis_deployments import (
    DOWN_AFTER,
    NODE_TIMEOUT,
    SERVICE,
    Cluster,
    Deployment,
    SentinelGroup,
    tcp_server,
)
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

DEPLOYMENTS: Final[Mapping[str, Callable[..., Deployment]]] = {
    "server": tcp_server,
    "sentinel": partial(SentinelGroup, down_after=DOWN_AFTER),
    "cluster": partial(Cluster, node_timeout=NODE_TIMEOUT),
}
_OUTAGE_FACTORS: Final = {"server": 1.0, "sentinel": 3.0, "cluster": 3.0}
"""Factors of an outage's duration: a failover takes seconds, and must have time to happen."""

_PURGE_READ_DELAY: Final = 2.0  # seconds until all routers have read a purge, on a busy machine
_REPLICATION_DELAY: Final = 1.0  # seconds until a replica has its primary's writes, on a busy machine
_RECOVERY_TIMEOUT: Final = 60.0


class RedisTestbed:
    """Servers with an append-only file, so that a killed server comes back with its data.

    `outages` last until all servers are healthy and agree on their roles. `flush_times`: when all data were lost.
    """

    def __init__(self, kind: str, report_defect: Callable[[str], None]) -> None:
        """`kind`: one of DEPLOYMENTS. `report_defect` takes a message."""
        self.kind = kind
        self.outages = Outages()
        self.flush_times: list[float] = []
        self._report_defect = report_defect
        self._proxy_ports: dict[int, int] = {}
        self._deployment = DEPLOYMENTS[kind]("--appendonly", "yes", announced=self._proxy_port)
        self._proxy = ProxyProcess(CLIENT_NAME, {front: port for port, front in self._proxy_ports.items()})

    @property
    def url(self) -> str:
        return self._deployment.url

    async def start(self, stack: AsyncExitStack) -> None:
        stack.callback(self._deployment.remove)
        stack.push_async_callback(self._proxy.stop)
        await self._proxy.start()
        await self._deployment.start()

    def _proxy_port(self, port: int) -> int:
        return self._proxy_ports.setdefault(port, free_port())

    # -- contents ---------------------------------------------------------------------------------------------------

    async def all_keys(self) -> AsyncIterator[tuple[RedisServer, str]]:
        for server in await self._deployment.primaries():
            cursor: Any = 0
            while True:
                cursor, keys = await server.command("SCAN", cursor, "MATCH", "rh:1:*", "COUNT", 1000)
                for key in keys:
                    yield server, key
                if not int(cursor):
                    break

    def may_have_lost(self, since: float, until: float) -> bool:
        """Whether routers may never learn of a purge that was sent and confirmed at these times.

        Either Redis lost its data before all routers had read the purge; routers remember what they have read. Or a
        replica that did not have it yet took over.
        """
        if any(since - _PURGE_READ_DELAY <= flushed_at <= until + _PURGE_READ_DELAY for flushed_at in self.flush_times):
            return True
        return self.kind != "server" and self.outages.overlaps(
            since, until + _REPLICATION_DELAY, "killed", "frozen", "stopped"
        )

    # -- faults -----------------------------------------------------------------------------------------------------

    async def kill(self, rng: Random, seconds: float, *, erase: bool) -> None:
        """`erase`: it restarts without its data; only without replicas, which would synchronise with it."""
        erase = erase and self.kind == "server"
        async with self._outage("killed"):
            server = await self._pick_server(rng)
            server.kill()
            if erase:
                shutil.rmtree(server.folder / "appendonlydir", ignore_errors=True)
                (server.folder / "appendonly.aof").unlink(missing_ok=True)
            await asyncio.sleep(_OUTAGE_FACTORS[self.kind] * seconds)
            await server.start()
        if erase:
            self._record_flush()

    async def freeze(self, rng: Random, seconds: float) -> None:
        async with self._outage("frozen"):
            server = await self._pick_server(rng)
            server.freeze()
            try:
                await asyncio.sleep(_OUTAGE_FACTORS[self.kind] * seconds)
            finally:
                server.thaw()

    async def fill(self, seconds: float) -> None:
        """The primaries have no room for more for a while: they refuse what takes memory."""
        servers = await self._deployment.primaries()
        with self.outages.record("full"):
            try:
                for server in servers:
                    await server.command("CONFIG", "SET", "maxmemory", 1)
                await asyncio.sleep(seconds)
            finally:
                for server in servers:
                    await server.command("CONFIG", "SET", "maxmemory", 0)

    async def flush(self) -> None:
        for server in await self._deployment.primaries():
            await server.command("FLUSHALL")
        self._record_flush()

    async def fail_over(self, rng: Random) -> None:
        """As an operator would. Of a single server, all connections are closed instead."""
        async with self._outage("stopped"):
            try:
                if isinstance(self._deployment, SentinelGroup):
                    await self._deployment.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE)
                elif isinstance(self._deployment, Cluster):
                    primaries = await self._deployment.primaries()
                    replicas = [server for server in self._deployment.servers if server not in primaries]
                    await rng.choice(replicas).command("CLUSTER", "FAILOVER")
                else:
                    for kind in ("normal", "pubsub"):
                        await self._deployment.servers[0].command("CLIENT", "KILL", "TYPE", kind)
            except redis.exceptions.ResponseError:
                pass  # refused: another failover is in progress, or no replica is healthy

    async def inject(self, fault: ConnectionFault) -> None:
        # Beyond a lease, followers may take their leader for lost.
        with self.outages.record("held" if fault.seconds < LEASE_DURATION else "deaf"):
            await self._proxy.inject(fault)
            await asyncio.sleep(fault.seconds)

    async def _pick_server(self, rng: Random) -> RedisServer:
        if isinstance(self._deployment, SentinelGroup):
            servers = list(self._deployment.data)
        else:
            servers = list(self._deployment.servers)
        primaries = await self._deployment.primaries()
        return rng.choice(primaries if rng.random() < 0.7 else servers)

    @asynccontextmanager
    async def _outage(self, kind: OutageKind) -> AsyncIterator[None]:
        with self.outages.record(kind):
            yield
            try:
                await eventually(self._is_healthy, timeout=_RECOVERY_TIMEOUT)
            except TimeoutError:
                self._report_defect("Redis has not become well again")

    async def _is_healthy(self) -> bool:
        try:
            return await self._deployment.is_healthy()
        except (redis.exceptions.RedisError, OSError, StopIteration, KeyError):
            return False

    def _record_flush(self) -> None:
        self.flush_times.append(asyncio.get_running_loop().time())
