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
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.bare_engine import EVENTS
from benchmarks.load import Load, bodies, load
from benchmarks.processes import cpu_seconds, running_routers
from tests.support.collector import Collector
from tests.support.router_process import RouterProcess

# `serve` replaces the process of the command line with another one of the same id.
CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--trace-children=yes")


class RequestPath(NamedTuple):
    """A path through the router: its requests, whether they must be hits, and the size of the local cache.

    `events`: the number of events of a stream. `vllm`: the engine looks like vLLM; `rest`: tables of the configuration.
    """

    name: str
    stream: bool
    hits: bool
    local: str = "64MiB"
    events: int = EVENTS
    vllm: bool = False
    rest: str = ""

    def bodies(self) -> Iterator[bytes]:
        return bodies(stream=self.stream, different=64 if self.hits else None, name=self.name)


PATHS = [
    RequestPath("hit, JSON, from memory", stream=False, hits=True),
    RequestPath("hit, stream, from memory", stream=True, hits=True),
    RequestPath("hit, stream of 500 events, from memory", stream=True, hits=True, events=500),
    RequestPath("hit, JSON, from Redis", stream=False, hits=True, local="0B"),
    RequestPath("hit, stream, from Redis", stream=True, hits=True, local="0B"),
    RequestPath("hit, stream of 500 events, from Redis", stream=True, hits=True, local="0B", events=500),
    RequestPath("miss, JSON", stream=False, hits=False),
    RequestPath("miss, stream of 66 events", stream=True, hits=False),
    # The router asks for the ids of tokens only where another engine may go on with a stream.
    RequestPath(
        "miss, stream of vLLM, no token ids", stream=True, hits=False, vllm=True, rest="[retry]\ncontinuations = 0\n"
    ),
    RequestPath("miss, stream of vLLM, token ids", stream=True, hits=False, vllm=True),
]


def check(result: Load, path: RequestPath) -> None:
    expected = "HIT" if path.hits else "MISS"
    if set(result.caches) != {expected}:
        raise RuntimeError(f"{path.name}: X-Cache was {dict(result.caches)}")


async def cpu_ms(router: RouterProcess, path: RequestPath, connections: int, requests: int) -> float:
    bodies = path.bodies()
    await load(router.port, bodies, connections=connections, requests=256)  # stores the entries of the hits
    before = cpu_seconds(router.process.pid)
    check(await load(router.port, bodies, connections=connections, requests=requests), path)
    return (cpu_seconds(router.process.pid) - before) / requests * 1000


async def million_instructions(path: RequestPath, connections: int, requests: int, rest: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command_prefix = (*CALLGRIND, f"--callgrind-out-file={folder}/out")
        async with running_routers(
            local=path.local, events=path.events, command_prefix=command_prefix, rest=rest + path.rest, vllm=path.vllm
        ) as (router,):
            bodies = path.bodies()
            await load(router.port, bodies, connections=connections, requests=256)
            await control(router, "--instr=on")
            await control(router, "--dump=begin")
            check(await load(router.port, bodies, connections=connections, requests=requests), path)
            await control(router, "--dump=end")
        newest = max(Path(folder).glob("out.*"), key=lambda out: int(out.suffix[1:]))
        totals = re.search(r"^totals: (\d+)", newest.read_text(), re.MULTILINE)
        assert totals is not None
        return int(totals[1]) / requests / 1e6


async def control(router: RouterProcess, argument: str) -> None:
    command = ["callgrind_control", argument, str(router.process.pid)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


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
        counted = await million_instructions(path, arguments.connections, 400, rest)
        row["million_instructions"] = round(counted, 3)
    print(json.dumps(row), flush=True)


asyncio.run(main())
