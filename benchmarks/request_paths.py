"""The paths of a request through the router, and the instructions of the router's process on each.

Instructions are those of user mode, counted by valgrind's callgrind, without those that the router also takes when
it is idle. On a machine with other load, the medians of two runs of 8 rounds differ by half a per cent. Single rounds
differ by up to 2 %, since not the same number of requests arrive at once.
"""

import asyncio
import contextlib
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.bare_engine import EVENTS
from benchmarks.load import Load, bodies, load
from benchmarks.processes import running_routers
from tests.support.router_process import RouterProcess

_IDLE_SECONDS: Final = 4.0

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

    @property
    def setup(self) -> tuple[object, ...]:
        """What a router and its engine are started with."""
        return self.local, self.events, self.vllm, self.rest

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


class CountedRouter:
    """A router whose instructions are counted; see `counted_router`."""

    def __init__(self, router: RouterProcess, outputs: Path) -> None:
        self._router = router
        self._outputs = outputs
        self._idle_rate = 0.0  # instructions a second
        self._bodies: dict[str, Iterator[bytes]] = {}  # of a path; a miss has been sent by no count before

    async def start_counting(self) -> None:
        await _control(self._router, "--instr=on")
        await self._count(asyncio.sleep(0))
        idle, seconds = await self._count(asyncio.sleep(_IDLE_SECONDS))
        self._idle_rate = idle / seconds

    async def million_instructions(
        self, path: RequestPath, connections: int = 16, requests: int = 400, *, rounds: int = 1
    ) -> float:
        """Of one request, the median of `rounds` with so many `requests` each."""
        bodies = self._bodies.setdefault(path.name, path.bodies())
        await self._count(load(self._router.port, bodies, connections=connections, requests=256))
        of_requests = []
        for _ in range(rounds):
            total, seconds = await self._count(self._load(path, bodies, connections, requests))
            of_requests.append(total - self._idle_rate * seconds)
        return statistics.median(of_requests) / requests / 1e6

    async def _load(self, path: RequestPath, bodies: Iterator[bytes], connections: int, requests: int) -> None:
        check(await load(self._router.port, bodies, connections=connections, requests=requests), path)

    async def _count(self, work: Awaitable[object]) -> tuple[int, float]:
        """The instructions of the router and the seconds that have passed since the count before."""
        started = time.perf_counter()
        await work
        await _control(self._router, "--dump=count")
        seconds = time.perf_counter() - started
        newest = max(self._outputs.glob("out.*"), key=lambda output: int(output.suffix[1:]))  # one for each dump
        return total_of(newest), seconds


@contextlib.asynccontextmanager
async def counted_router(path: RequestPath, rest: str = "") -> AsyncIterator[CountedRouter]:
    """A router for this path and others with the same `setup`: it needs most of a minute to start.

    `rest`: as of RequestPath, in addition.
    """
    with tempfile.TemporaryDirectory() as folder:
        command_prefix = (*CALLGRIND, f"--callgrind-out-file={folder}/out")
        async with running_routers(
            local=path.local, events=path.events, command_prefix=command_prefix, rest=rest + path.rest, vllm=path.vllm
        ) as (router,):
            counted = CountedRouter(router, Path(folder))
            await counted.start_counting()
            yield counted


def total_of(output: Path) -> int:
    """The instructions in an output file of callgrind."""
    totals = re.search(r"^totals: (\d+)", output.read_text(), re.MULTILINE)
    assert totals is not None
    return int(totals[1])


async def _control(router: RouterProcess, argument: str) -> None:
    command = ["callgrind_control", argument, str(router.process.pid)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
