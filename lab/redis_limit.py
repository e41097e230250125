"""What one core of Redis carries, and what happens when a Redis server is lost.

    .venv/bin/python -m lab.redis_limit --part hits --part misses --json limits.json

Routers are `roundhouse serve` processes, the engine answers at once (benchmarks/bare_engine.py), and Redis is a real
redis-server bound to one core; everything else has the other cores. Without `--part`, all parts run.

- hits: entries from Redis, with the local cache off. misses: JSON, with lookup, claim, write and release.
  followers: streams that one router generates and another one follows. The unit is the CPU time of Redis per request,
  by its INFO: see lab/redis_limits/costs.py.
- saturation: clients that send the commands of the routers, byte for byte, as fast as one core of Redis can execute
  them: see lab/redis_limits/saturation.py.
- cluster: hits and misses with one server and with three primaries, each with and without replicas.
- failover: 100 requests a second over two routers with default settings while the primary is killed, frozen, or
  replaced on purpose: see lab/redis_limits/failover.py.
- memory: bytes per entry, and the time of a restart: see lab/redis_limits/memory.py.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from benchmarks.options import at_least_zero, count, counts, output_file, positive
from lab.redis_limits import cluster, costs, failover, memory, saturation
from lab.redis_limits.costs import Pace
from lab.redis_limits.tables import table
from lab.redis_limits.usage import cores

Rows = list[dict[str, Any]]


def pace(options: argparse.Namespace) -> Pace:
    return Pace(options.idle, options.settling)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="a part to run; may be repeated")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all figures there")
    parser.add_argument("--requests", type=count, default=8000, help="per measurement of hits, misses and cluster")
    parser.add_argument("--streams", type=count, default=400, help="per measurement of followers")
    parser.add_argument("--connections", type=counts, default=[1, 16, 64], help="to each router, separated by commas")
    parser.add_argument("--routers", type=counts, default=[2], help="of hits, misses and saturation, e.g. 1,2,4")
    parser.add_argument("--idle", type=positive, default=5.0, help="seconds to observe Redis without requests")
    parser.add_argument(
        "--settling", type=at_least_zero, default=2.5, help="seconds to observe it after the last request"
    )
    parser.add_argument("--seconds", type=positive, default=5.0, help="of each saturation")
    parser.add_argument("--batches", type=counts, default=[1, 4, 16, 64], help="of saturation: requests in a batch")
    parser.add_argument("--servers", action="append", choices=list(cluster.SERVERS), help="of cluster")
    parser.add_argument("--clients", type=count, default=4, help="of saturation: processes that send")
    parser.add_argument("--deployment", action="append", choices=list(failover.DEPLOYMENTS), help="of failover")
    parser.add_argument("--fault", action="append", choices=list(failover.FAULTS), help="of failover")
    parser.add_argument("--rate", type=positive, default=100.0, help="of failover: requests a second")
    parser.add_argument("--before", type=positive, default=5.0, help="of failover: seconds before the fault")
    parser.add_argument("--after", type=positive, default=15.0, help="of failover: seconds after the fault")
    parser.add_argument("--detection", type=count, default=failover.DETECTION_MS,
                        help="of failover: down-after-milliseconds and cluster-node-timeout")  # fmt: skip
    parser.add_argument("--entries", type=count, default=1_000_000, help="of memory")
    parser.add_argument("--kind", action="append", choices=list(memory.KINDS), help="of memory: a kind of entries")
    return parser.parse_args()


async def hits(options: argparse.Namespace) -> Rows:
    return [
        row
        for routers in options.routers
        for row in await costs.hits(options.requests, options.connections, routers, pace(options))
    ]


async def misses(options: argparse.Namespace) -> Rows:
    return [
        row
        for routers in options.routers
        for row in await costs.misses(options.requests, options.connections, routers, pace(options))
    ]


async def followers(options: argparse.Namespace) -> Rows:
    return await costs.followers(options.streams, options.connections, pace(options))


async def saturate(options: argparse.Namespace) -> Rows:
    return [
        row
        for routers in options.routers
        for row in await saturation.saturate(options.batches, options.seconds, options.clients, routers)
    ]


async def clusters(options: argparse.Namespace) -> Rows:
    return [
        row
        for name in options.servers or cluster.SERVERS
        for row in await cluster.costs_with(name, options.requests, max(options.connections), pace(options))
    ]


async def failovers(options: argparse.Namespace) -> Rows:
    plan = failover.Plan(options.rate, options.before, options.after, options.detection)
    return [
        await failover.run(deployment, fault, plan)
        for deployment in options.deployment or failover.DEPLOYMENTS
        for fault in options.fault or failover.FAULTS
    ]


async def memories(options: argparse.Namespace) -> Rows:
    return [await memory.measure(kind, options.entries) for kind in options.kind or memory.KINDS]


PARTS: Final[Mapping[str, Callable[[argparse.Namespace], Awaitable[Rows]]]] = {
    "hits": hits, "misses": misses, "followers": followers, "saturation": saturate, "cluster": clusters,
    "failover": failovers, "memory": memories,
}  # fmt: skip


async def main() -> None:
    options = arguments()
    os.sched_setaffinity(0, cores()[1])  # inherited by routers and engines; Redis gets a core of its own
    results: dict[str, Rows] = {}
    for part in options.part or PARTS:
        results[part] = await PARTS[part](options)
        print(f"\n{part}\n\n{table(part, results[part])}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
