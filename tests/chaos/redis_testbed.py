"""The Redis of the chaos: one server, Sentinels or a cluster, behind a proxy, and what is done to it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, Final

import redis.exceptions

from router.net.redis.handshake import CLIENT_NAME
from router.shared.claim import LEASE
from tests.chaos.outages import Kind, Outages
from tests.support.redis_deployments import SERVICE, Cluster, Deployment, SentinelGroup, tcp
from tests.support.redis_process import RedisServer
from tests.support.tcp_proxy import Order, ProxyProcess
from tests.support.waiting import eventually, free_port

DEPLOYMENTS: Final[Mapping[str, Callable[..., Deployment]]] = {
    "server": tcp,
    "sentinel": SentinelGroup,
    "cluster": Cluster,
}
_TIMES: Final = {"server": 1.0, "sentinel": 3.0, "cluster": 3.0}
"""How much longer a server is away where another may take its place, which takes seconds."""

_READ: Final = 2.0  # seconds within which all routers have read a purge, on a busy machine
_REPLICATES: Final = 1.0  # seconds within which a replica has what its primary has, on a busy machine
_PATIENCE: Final = 60.0


class RedisHouse:
    """Servers that keep what they have in a file, so that those that are killed come back with it.

    - `outages`: until all servers are well again and agree on who is who. `emptied`: when it forgot all, each time.
    """

    def __init__(self, kind: str, note: Callable[[str], None]) -> None:
        """`kind`: one of DEPLOYMENTS. `note` takes a defect."""
        self.kind = kind
        self.outages = Outages()
        self.emptied: list[float] = []
        self._note = note
        self._fronts: dict[int, int] = {}
        self._deployment = DEPLOYMENTS[kind]("--appendonly", "yes", announced=self._front)
        self._proxy = ProxyProcess(CLIENT_NAME, {front: port for port, front in self._fronts.items()})

    @property
    def url(self) -> str:
        return self._deployment.url

    async def start(self, stack: AsyncExitStack) -> None:
        """`stack` takes what ends it."""
        stack.callback(self._deployment.remove)
        stack.push_async_callback(self._proxy.stop)
        await self._proxy.start()
        await self._deployment.start()

    def _front(self, port: int) -> int:
        """The port of the proxy before a server's port."""
        return self._fronts.setdefault(port, free_port())

    # -- what it holds ----------------------------------------------------------------------------------------------

    async def all_keys(self) -> AsyncIterator[tuple[RedisServer, str]]:
        """All keys of ours, each with the server that holds it."""
        for server in await self._deployment.primaries():
            cursor: Any = 0
            while True:
                cursor, keys = await server.command("SCAN", cursor, "MATCH", "rh:1:*", "COUNT", 1000)
                for key in keys:
                    yield server, key
                if not int(cursor):
                    break

    def may_have_lost(self, since: float, until: float) -> bool:
        """Whether a purge that was sent and done at these times may be lost to those who should know it.

        Either Redis was emptied before all routers had read it; what they have read they know, whatever Redis forgets.
        Or a replica took over that did not have it yet.
        """
        if any(since - _READ <= emptied <= until + _READ for emptied in self.emptied):
            return True
        return self.kind != "server" and self.outages.overlap(since, until + _REPLICATES, "killed", "frozen", "stopped")

    # -- what is done to it -----------------------------------------------------------------------------------------

    async def kill(self, dice: Random, seconds: float, *, forget: bool) -> None:
        """`forget`: it comes back empty; only of a server without replicas, which would follow it in that."""
        forget = forget and self.kind == "server"
        async with self._outage("killed"):
            server = await self._victim(dice)
            server.kill()
            if forget:
                shutil.rmtree(server.folder / "appendonlydir", ignore_errors=True)
                (server.folder / "appendonly.aof").unlink(missing_ok=True)
            await asyncio.sleep(_TIMES[self.kind] * seconds)
            await server.start()
        if forget:
            self._note_emptied()

    async def freeze(self, dice: Random, seconds: float) -> None:
        async with self._outage("frozen"):
            server = await self._victim(dice)
            server.freeze()
            try:
                await asyncio.sleep(_TIMES[self.kind] * seconds)
            finally:
                server.thaw()

    async def flush(self) -> None:
        for server in await self._deployment.primaries():
            await server.command("FLUSHALL")
        self._note_emptied()

    async def fail_over(self, dice: Random) -> None:
        """As an operator would; of one server, all connections are ended instead."""
        async with self._outage("stopped"):
            try:
                if isinstance(self._deployment, SentinelGroup):
                    await self._deployment.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE)
                elif isinstance(self._deployment, Cluster):
                    primaries = await self._deployment.primaries()
                    replicas = [server for server in self._deployment.servers if server not in primaries]
                    await dice.choice(replicas).command("CLUSTER", "FAILOVER")
                else:
                    for kind in ("normal", "pubsub"):
                        await self._deployment.servers[0].command("CLIENT", "KILL", "TYPE", kind)
            except redis.exceptions.ResponseError:
                pass  # it cannot at present: another failover is under way, or no replica is well

    async def disturb(self, order: Order) -> None:
        """Something is done to connections."""
        with self.outages.outage("held" if order.seconds < LEASE else "deaf"):
            await self._proxy.order(order)
            await asyncio.sleep(order.seconds)

    async def _victim(self, dice: Random) -> RedisServer:
        """Mostly one that keys are written to."""
        if isinstance(self._deployment, SentinelGroup):
            servers = list(self._deployment.data)
        else:
            servers = list(self._deployment.servers)
        primaries = await self._deployment.primaries()
        return dice.choice(primaries if dice.random() < 0.7 else servers)

    @asynccontextmanager
    async def _outage(self, kind: Kind) -> AsyncIterator[None]:
        with self.outages.outage(kind):
            yield
            try:
                await eventually(self._is_well, within=_PATIENCE)
            except TimeoutError:
                self._note("Redis has not become well again")

    async def _is_well(self) -> bool:
        try:
            return await self._deployment.is_well()
        except (redis.exceptions.RedisError, OSError, StopIteration, KeyError):
            return False

    def _note_emptied(self) -> None:
        self.emptied.append(asyncio.get_running_loop().time())
