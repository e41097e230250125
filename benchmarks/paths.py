"""The cost of a request on each path: CPU time, and the instructions of the router's process.

    .venv/bin/python -m benchmarks.paths [--instructions] [--only hit] [--tracing 1.0]

One router process with all features on, a Redis, an engine of minimal cost, and the load, all on this machine. CPU time
is the router's, user and system, as the scheduler counts it. Instructions (user mode only) are counted by valgrind's
callgrind, which takes some minutes per run. They do not depend on the load of the machine, so they show a change of one
per cent, which CPU time does not.
"""

import argparse
import asyncio
import contextlib
import json

from benchmarks.load import load
from benchmarks.processes import cpu_seconds, running_routers
from benchmarks.request_paths import PATHS, RequestPath, check, counted_router
from tests.support.collector import Collector
from tests.support.router_process import RouterProcess


async def cpu_ms(router: RouterProcess, path: RequestPath, connections: int, requests: int) -> float:
    bodies = path.bodies()
    await load(router.port, bodies, connections=connections, requests=256)  # stores the entries of the hits
    before = cpu_seconds(router.process.pid)
    check(await load(router.port, bodies, connections=connections, requests=requests), path)
    return (cpu_seconds(router.process.pid) - before) / requests * 1000


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--instructions", action="store_true", help="also count instructions, with valgrind")
    parser.add_argument("--only", default="", help="only paths whose name contains this")
    parser.add_argument("--tracing", type=float, help="the share of traced requests; the collector runs here")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        rest = ""
        if arguments.tracing is not None:
            collector = stack.enter_context(Collector())
            rest = f'[tracing]\nendpoint = "{collector.url}"\nsample = {arguments.tracing}\n'
        for path in PATHS:
            if arguments.only in path.name:
                await measure(path, arguments, rest)


async def measure(path: RequestPath, arguments: argparse.Namespace, rest: str) -> None:
    async with running_routers(local=path.local, events=path.events, rest=rest + path.rest, vllm=path.vllm) as (
        router,
    ):
        row: dict[str, object] = {"path": path.name}
        row["cpu_ms"] = round(await cpu_ms(router, path, arguments.connections, arguments.requests), 4)
    if arguments.instructions:
        async with counted_router(path, rest) as counted:
            row["million_instructions"] = round(await counted.million_instructions(path, arguments.connections), 3)
    print(json.dumps(row), flush=True)


asyncio.run(main())
