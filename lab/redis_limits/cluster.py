"""Hits and misses with one Redis server and with a cluster of three primaries, with and without replicas.

A cluster carries what its busiest primary carries. On a machine with fewer cores than servers, no rate of a cluster can
be measured; CPU time can, so `per_core` of a cluster is the number of requests per second at which its busiest primary
uses 100 % of a core, if each primary has one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.processes import running_routers
from lab.redis_limits.costs import Cost, Meter, Pace, hit_costs, miss_costs, pinned
from tests.support.ports import free_port
from tests.support.redis_deployments import Cluster, Deployment, tcp_server
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually


class Replicated(Deployment):
    """A primary and a replica, without Sentinels."""

    def __init__(self) -> None:
        primary = RedisServer("--repl-diskless-sync-delay", "0", port=free_port())
        replica = RedisServer("--replicaof", "127.0.0.1", str(primary.port), port=free_port())
        super().__init__(f"redis://127.0.0.1:{primary.port}", [primary, replica])

    async def start(self) -> None:
        await super().start()
        await eventually(self._is_linked)

    async def _is_linked(self) -> bool:
        return bool((await self.servers[1].command("INFO", "replication"))["master_link_status"] == "up")


SERVERS: Final[Mapping[str, Callable[[], Deployment]]] = {
    "one server": tcp_server,
    "one server, one replica": Replicated,
    "3 primaries": lambda: Cluster(replicas=0),
    "3 primaries, 3 replicas": Cluster,
}


async def costs_with(name: str, requests: int, connections: int, pace: Pace) -> list[Cost]:
    rows: list[Cost] = []
    for local, measure in (("0B", hit_costs), ("64MiB", miss_costs)):
        async with pinned(SERVERS[name]()) as redis, running_routers(routers=2, redis=redis, local=local) as routers:
            meter = Meter(await redis.primaries(), pace)
            observed = await meter.observe_idle()
            (cost,) = await measure([router.port for router in routers], meter, requests, [connections])
            rows.append({"redis": name, "idle": observed, **_capacity(cost)})
    return rows


def _capacity(cost: Cost) -> Cost:
    """With the share of each primary in the CPU time, and the capacity by the busiest one."""
    servers: list[dict[str, Any]] = cost.pop("servers", [])
    if not servers:
        return {**cost, "busiest_per_core": cost["per_core"], "cpu_shares": [1.0]}
    total = sum(server["cpu_us"] for server in servers) or 1.0
    return {
        **cost,
        "busiest_per_core": min((server["per_core"] for server in servers if server["per_core"]), default=None),
        "cpu_shares": [round(server["cpu_us"] / total, 3) for server in servers],
        "command_shares": [round(server["commands"] / (cost["commands"] or 1), 3) for server in servers],
        "primaries": servers,
    }
