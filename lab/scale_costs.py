"""What a request costs a router process and Redis on each path, and what an idle router costs: the simulation's input.

    .venv/bin/python -m lab.scale_costs [--output lab/scale/measured_costs.json] [--quick]

Everything runs on this machine: one or two router processes, a Redis and engines of minimal cost. All figures are CPU
time, the routers' as the scheduler counts it and Redis' as INFO reports it (used_cpu_user + used_cpu_sys), so other
load on the machine matters little. What the same processes take while they are idle is subtracted.

- `paths`: per request, with 16 connections. `paced_stream`: per stream and event, from streams of two lengths.
- `local_follower`: a request that shares a generation of its own router process; a stream of 66 events.
- `remote_pair`: two identical requests at two router processes: both routers together, and Redis.
- `invalidation`: what each stored entry costs every other router process, and Redis for each process that listens.
- `idle`: what a router process takes per second without requests, and per second for each simulated engine.
- `ranking`: the choice of an engine among 256, once for each generation; it grows with their number.
- `open_stream`: memory and file descriptors of a stream while it is open.
"""

import argparse
import asyncio
import contextlib
import json
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from benchmarks.bare_engine import EVENTS
from benchmarks.load import bodies, load
from benchmarks.options import output_file
from benchmarks.processes import cpu_seconds, memory_kb, running_routers
from router.core.cache.redis_keys import tracked_prefixes
from router.core.routing.ranking import rank_engines
from router.core.types import DEFAULT_TENANT
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.simulated_engine import SimulatedEngine

ROOT: Final = Path(__file__).parents[1]
OUTPUT: Final = ROOT / "lab" / "scale" / "measured_costs.json"
CONNECTIONS: Final = 16
LISTENERS: Final = 64
ENGINES: Final = 4
ENTRIES: Final = 32
"""Engines of the configuration: enough that their cost stands out from that of an idle router."""
IDLE: Final = 2.0
"""Seconds for which the processes are observed without requests; what they take then is subtracted."""

PACE: Final = 10.0
"""Milliseconds between two events of a paced stream."""


class Reading(NamedTuple):
    """CPU seconds of processes, the commands that Redis has executed, and the instant."""

    at: float
    routers: tuple[float, ...]
    redis: float
    commands: int


class Meter:
    """Reads what routers and their Redis have taken; `idle` is subtracted from every later measurement."""

    def __init__(self, routers: Sequence[RouterProcess], redis: RedisServer) -> None:
        self._pids = [router.process.pid for router in routers]
        self._redis = redis
        self._idle = (tuple(0.0 for _ in routers), 0.0, 0.0)  # per second

    async def read(self) -> Reading:
        info = await self._redis.command("INFO", "everything")
        redis_cpu = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        cpu = tuple(map(cpu_seconds, self._pids))
        return Reading(time.monotonic(), cpu, redis_cpu, int(info["total_commands_processed"]))

    async def measure_idle(self, seconds: float) -> None:
        before = await self.read()
        await asyncio.sleep(seconds)
        routers, redis, commands = await self.since(before)
        self._idle = tuple(each / seconds for each in routers), redis / seconds, commands / seconds

    async def since(self, before: Reading) -> tuple[tuple[float, ...], float, float]:
        """CPU seconds of each router, of Redis, and commands, without those of the idle processes."""
        now = await self.read()
        seconds = now.at - before.at
        routers = tuple(
            after - earlier - idle * seconds
            for after, earlier, idle in zip(now.routers, before.routers, self._idle[0], strict=True)
        )
        return (
            routers,
            now.redis - before.redis - self._idle[1] * seconds,
            now.commands - before.commands - self._idle[2] * seconds,
        )


@contextlib.asynccontextmanager
async def metered(
    *, idle: float = IDLE, **options: Any
) -> AsyncIterator[tuple[list[RouterProcess], RedisServer, Meter]]:
    """Running routers, their Redis, and its meter. `idle`: see IDLE; `options`: those of `running_routers`."""
    redis = RedisServer()
    try:
        await redis.start()
        async with running_routers(redis=redis, **options) as routers:
            for router in routers:
                await load(router.port, bodies(stream=False, name="warm"), connections=CONNECTIONS, requests=64)
            meter = Meter(routers, redis)
            await meter.measure_idle(idle)
            yield routers, redis, meter
    finally:
        redis.remove()


async def path(requests: int, *, stream: bool, hits: bool, local: str = "64MiB") -> dict[str, float]:
    """Costs per request in microseconds; `redis_commands` counts INFO's, of which a batch has several."""
    async with metered(local=local) as ((router,), _, meter):
        chats = bodies(stream=stream, different=64 if hits else None, name="path")
        await load(router.port, chats, connections=CONNECTIONS, requests=256)
        before = await meter.read()
        result = await load(router.port, chats, connections=CONNECTIONS, requests=requests)
        if set(result.caches) != {"HIT" if hits else "MISS"}:
            raise RuntimeError(f"X-Cache was {dict(result.caches)}")
        (cpu,), redis, commands = await meter.since(before)
    return {
        "router_us": round(cpu / requests * 1e6, 1),
        "redis_us": round(redis / requests * 1e6, 1),
        "redis_commands": round(commands / requests, 2),
    }


async def paced_stream(streams: int, events: int) -> float:
    """CPU microseconds of the router for each stream with this number of paced events; 64 are open at a time."""
    async with metered(interval=PACE, events=events) as ((router,), _, meter):
        before = await meter.read()
        await load(router.port, bodies(stream=True, name="paced"), connections=64, requests=streams)
        (cpu,), _, _ = await meter.since(before)
    return cpu / streams * 1e6


async def local_follower(followers: int) -> float:
    """CPU microseconds of a router for each further identical request while the first is generated."""
    async with metered(interval=PACE) as ((router,), _, meter):
        costs = []
        for number, requests in enumerate((1, followers + 1)):
            before = await meter.read()
            chats = bodies(stream=True, different=1, name=f"follow {number}")
            await load(router.port, chats, connections=requests, requests=requests)
            (cpu,), _, _ = await meter.since(before)
            costs.append(cpu)
    return (costs[1] - costs[0]) / followers * 1e6


async def remote_pair(pairs: int) -> dict[str, float]:
    """Two identical requests at two router processes; streams of 66 events. Compare with two misses."""
    async with metered(routers=2, interval=PACE) as (routers, _, meter):
        before = await meter.read()
        results = await asyncio.gather(
            *(
                load(router.port, bodies(stream=True, name="pair"), connections=CONNECTIONS, requests=pairs)
                for router in routers
            )
        )
        cpu, redis, commands = await meter.since(before)
    shared = sum(result.caches["COALESCED"] for result in results)
    return {
        "routers_us": round(sum(cpu) / pairs * 1e6, 1),
        "redis_us": round(redis / pairs * 1e6, 1),
        "redis_commands": round(commands / pairs, 2),
        "shared": round(shared / pairs, 3),
    }


async def invalidation(writes: int, idle: float) -> dict[str, float]:
    """Microseconds per stored entry: of a router that only listens, and of Redis for each process that listens."""
    async with metered(routers=2, idle=idle) as ((writer, _), redis_server, meter):
        redis_costs = []
        listening = 0.0
        for listeners in (0, LISTENERS):
            async with _listeners(redis_server, listeners):
                await meter.measure_idle(idle)
                before = await meter.read()
                chats = bodies(stream=False, name=f"write {listeners}")
                await load(writer.port, chats, connections=CONNECTIONS, requests=writes)
                (_, idle_router), redis, _ = await meter.since(before)
            redis_costs.append(redis / writes * 1e6)
            if not listeners:
                listening = idle_router / writes * 1e6
    return {
        "router_us": round(listening, 2),
        "redis_us": round((redis_costs[1] - redis_costs[0]) / LISTENERS, 3),
    }


@contextlib.asynccontextmanager
async def _listeners(redis: RedisServer, count: int) -> AsyncIterator[None]:
    """Connections with the tracking that each router process has; what they receive is read and dropped."""
    prefixes = " ".join(f"PREFIX {prefix}" for prefix in tracked_prefixes([DEFAULT_TENANT]))
    writers, readers = [], []
    for _ in range(count):
        reader, writer = await asyncio.open_unix_connection(str(redis.socket))
        writer.write(f"HELLO 3\r\nCLIENT TRACKING ON BCAST {prefixes}\r\n".encode())
        writers.append(writer)
        readers.append(asyncio.create_task(_drop(reader)))
    try:
        yield
    finally:
        for writer in writers:
            writer.close()
        await asyncio.gather(*readers)


async def _drop(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def idle(seconds: float) -> dict[str, Any]:
    """What a router without requests takes per second, alone and for each further engine."""
    rows, series = [], []
    alone = await redis_alone(seconds / 2)
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimulatedEngine(model="bare")) for _ in range(ENGINES)]
        async with httpx.AsyncClient(trust_env=False) as http:
            page = len((await http.get(f"{engines[0].url}/metrics")).content)
        for count in (0, ENTRIES):
            # Several entries for each simulator: a router checks every entry by itself.
            rest = "".join(
                f'[[engine]]\nname = "more-{number}"\nmodel = "bare"\nurl = "{engines[number % ENGINES].url}"\n'
                for number in range(count)
            )
            async with metered(rest=rest) as ((router,), redis, meter):
                meter = Meter([router], redis)
                stats = await _command_counts(redis)
                before = await meter.read()
                await asyncio.sleep(seconds)
                (cpu,), redis_cpu, commands = await meter.since(before)
                after = await _command_counts(redis)
                by_command = {
                    name: round((after[name] - stats.get(name, 0)) / seconds, 2)
                    for name in sorted(after)
                    if after[name] - stats.get(name, 0) > 1
                }
                rows.append((cpu / seconds, redis_cpu / seconds - alone, commands / seconds, by_command))
                series.append(await _series(router.url))
    return {
        "router_us_per_s": round(rows[0][0] * 1e6),
        "metrics_page_kb": round(page / 1024, 1),
        "router_us_per_s_per_engine": round((rows[1][0] - rows[0][0]) / ENTRIES * 1e6),
        "redis_us_per_s": round(rows[0][1] * 1e6),
        "redis_commands_per_s": round(rows[0][2], 1),
        "redis_commands_per_s_with_more_engines": round(rows[1][2], 1),
        "redis_commands": rows[0][3],
        "metric_series": series[0],
        "metric_series_per_engine": (series[1] - series[0]) / ENTRIES,
    }


async def redis_alone(seconds: float) -> float:
    """CPU seconds per second of a Redis without clients."""
    redis = RedisServer()
    try:
        await redis.start()
        meter = Meter([], redis)
        before = await meter.read()
        await asyncio.sleep(seconds)
        _, cpu, _ = await meter.since(before)
        return cpu / seconds
    finally:
        redis.remove()


async def _series(url: str) -> int:
    """The number of time series of a router."""
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"{url}/metrics")).text
    return sum(1 for line in page.splitlines() if line and not line.startswith("#"))


async def _command_counts(redis: RedisServer) -> dict[str, int]:
    stats = await redis.command("INFO", "commandstats")
    return {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}


def ranking(engines: int, rounds: int) -> dict[str, float]:
    """CPU microseconds of choosing among this number of equal engines, as for each generation, and for each of them."""
    known = [
        Engine(EngineConfig(name=f"engine-{number}", model="m", task="any", url="http://127.0.0.1:1", served_model="m"))
        for number in range(engines)
    ]
    started = time.process_time()
    for _ in range(rounds):
        ranked = rank_engines([engine.snapshot() for engine in known])
        assert len(ranked) == engines
    us = (time.process_time() - started) / rounds * 1e6
    return {"engines": engines, "us": round(us, 1), "us_per_engine": round(us / engines, 3)}


async def open_stream(streams: int) -> dict[str, float]:
    """Growth of the router while this number of streams is open, for each of them."""
    async with metered(interval=50.0) as ((router,), _, _):
        pid = router.process.pid
        memory, files = memory_kb(pid), len(list(Path(f"/proc/{pid}/fd").iterdir()))
        running = asyncio.create_task(
            load(router.port, bodies(stream=True, name="open"), connections=streams, requests=streams)
        )
        await asyncio.sleep(EVENTS * 0.05 * 0.6)
        grown, opened = memory_kb(pid) - memory, len(list(Path(f"/proc/{pid}/fd").iterdir())) - files
        await running
    return {"kb": round(grown / streams, 1), "files": round(opened / streams, 2)}


async def paths(scale: float) -> dict[str, Any]:
    def number(count: int) -> int:
        return _at_least_32(count * scale)

    return {
        "hit_json_local": await path(number(4000), stream=False, hits=True),
        "hit_stream_local": await path(number(4000), stream=True, hits=True),
        "hit_json_redis": await path(number(4000), stream=False, hits=True, local="0B"),
        "hit_stream_redis": await path(number(4000), stream=True, hits=True, local="0B"),
        "miss_json": await path(number(3000), stream=False, hits=False),
        "miss_stream_66_unpaced": await path(number(1500), stream=True, hits=False),
    }


async def paced(scale: float) -> dict[str, float]:
    short, long = 18, 130
    short_us = await paced_stream(_at_least_32(512 * scale), short)
    long_us = await paced_stream(_at_least_32(256 * scale), long)
    event = (long_us - short_us) / (long - short)
    return {"event_us": round(event, 2), "stream_us": round(short_us - short * event, 1)}


async def local_followers(scale: float) -> dict[str, float]:
    return {"router_us": round(await local_follower(_at_least_32(64 * scale)), 1), "events": EVENTS}


async def rankings(scale: float) -> dict[str, float]:
    return ranking(256, _at_least_32(500 * scale))


MEASUREMENTS: Final[dict[str, Callable[[float], Awaitable[Any]]]] = {
    "paths": paths,
    "paced_stream": paced,
    "local_follower": local_followers,
    "remote_pair": lambda scale: remote_pair(_at_least_32(64 * scale)),
    "invalidation": lambda scale: invalidation(_at_least_32(3000 * scale), IDLE * scale),
    "idle": lambda scale: idle(max(3.0, 20.0 * scale)),
    "ranking": rankings,
    "open_stream": lambda scale: open_stream(_at_least_32(256 * scale)),
}
"""By name in the output; the argument is 1 for the committed figures, and less for fewer requests."""


def _at_least_32(count: float) -> int:
    return max(32, int(count))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=output_file, default=OUTPUT)
    parser.add_argument("--only", choices=MEASUREMENTS, help="measure and print only this")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, to try the script")
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else 1.0
    result: dict[str, Any] = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{_processor()}, Python {platform.python_version()}, {platform.system()}",
    }
    for name, measurement in MEASUREMENTS.items():
        if arguments.only in (None, name):
            result[name] = await measurement(scale)
    text = json.dumps(result, indent=2)
    if arguments.only is None:
        arguments.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
