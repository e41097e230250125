"""What a request costs on each path: CPU time, and the instructions that the router's process executes for it.

    PYTHONPATH=. .venv/bin/python benchmarks/paths.py [--instructions] [--only hit]

One router process with all features on, a Redis, an engine that costs next to nothing, and the load, all on this
machine. CPU time is the router's, user and system, by the scheduler. Instructions (user mode only) are counted by
valgrind's callgrind, with which a run takes some minutes: they are the same whatever else the machine does, so they
tell a change of one per cent, which the clock does not.
"""

import argparse
import asyncio
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bare_engine import EVENTS
from load import Load, bodies, load
from processes import cpu_seconds, running_routers

from tests.support.router_process import RouterProcess

CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")


class Way(NamedTuple):
    """One way through the router: what is asked, what X-Cache has to say, and how large the copy in memory is.

    `events`: how many a stream has.
    """

    name: str
    stream: bool
    hits: bool
    local: str = "64MiB"
    events: int = EVENTS

    def bodies(self) -> Iterator[bytes]:
        return bodies(stream=self.stream, different=64 if self.hits else None, name=self.name)


WAYS = [
    Way("hit, JSON, from memory", stream=False, hits=True),
    Way("hit, stream, from memory", stream=True, hits=True),
    Way("hit, stream of 500 events, from memory", stream=True, hits=True, events=500),
    Way("hit, JSON, from Redis", stream=False, hits=True, local="0B"),
    Way("hit, stream, from Redis", stream=True, hits=True, local="0B"),
    Way("hit, stream of 500 events, from Redis", stream=True, hits=True, local="0B", events=500),
    Way("miss, JSON", stream=False, hits=False),
    Way("miss, stream of 66 events", stream=True, hits=False),
]


def check(result: Load, way: Way) -> None:
    expected = "HIT" if way.hits else "MISS"
    if set(result.caches) != {expected}:
        raise RuntimeError(f"{way.name}: X-Cache was {dict(result.caches)}")


async def cpu_ms(router: RouterProcess, way: Way, connections: int, requests: int) -> float:
    bodies = way.bodies()
    await load(router.port, bodies, connections=connections, requests=256)  # what is to be a hit is stored then
    before = cpu_seconds(router.process.pid)
    check(await load(router.port, bodies, connections=connections, requests=requests), way)
    return (cpu_seconds(router.process.pid) - before) / requests * 1000


async def million_instructions(way: Way, connections: int, requests: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command_prefix = (*CALLGRIND, f"--callgrind-out-file={folder}/out")
        async with running_routers(local=way.local, events=way.events, command_prefix=command_prefix) as (router,):
            bodies = way.bodies()
            await load(router.port, bodies, connections=connections, requests=256)
            await control(router, "--instr=on")
            await control(router, "--dump=begin")
            check(await load(router.port, bodies, connections=connections, requests=requests), way)
            await control(router, "--dump=end")
        newest = max(Path(folder).glob("out.*"), key=lambda out: int(out.suffix[1:]))
        totals = re.search(r"^totals: (\d+)", newest.read_text(), re.MULTILINE)
        assert totals is not None
        return int(totals[1]) / requests / 1e6


async def control(router: RouterProcess, order: str) -> None:
    command = ["callgrind_control", order, str(router.process.pid)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--instructions", action="store_true", help="count them, with valgrind")
    parser.add_argument("--only", default="", help="the paths with this in their names")
    arguments = parser.parse_args()
    for way in WAYS:
        if arguments.only not in way.name:
            continue
        async with running_routers(local=way.local, events=way.events) as (router,):
            row: dict[str, object] = {"path": way.name}
            row["cpu_ms"] = round(await cpu_ms(router, way, arguments.connections, arguments.requests), 4)
        if arguments.instructions:
            counted = await million_instructions(way, arguments.connections, 400)
            row["million_instructions"] = round(counted, 3)
        print(json.dumps(row), flush=True)


asyncio.run(main())
