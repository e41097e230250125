"""The throughput of a router with 1, 2 and 4 workers, and the CPU time that each process spends on a request.

    .venv/bin/python -m benchmarks.workers [--workers 1,2,4] [--only hit] [--json FILE]

One router, a Redis, two engines of minimal cost and two processes of load, all on this machine; all features are on.
Requests per second say what this machine does with its cores. CPU time says what each part costs, and so which part
needs the next core: it is user and system time by the scheduler (Redis: INFO's used_cpu). From Redis' time per request
follows the number of requests per second at which its one core is full, and the number of busy workers that send so
many: a worker is one core, too.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bare_engine import EVENTS
from benchmarks.load import bodies, load
from benchmarks.options import count, counts, output_file
from benchmarks.processes import START_TIMEOUT, cpu_seconds, started_script
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, RouterProcess
from tests.support.waiting import eventually

CONFIGURATION = """
[router]
workers = {workers}
[cache]
url = "{redis}"
timeout = "30s"
local = "{local}"
[[model]]
name = "bare"
[[engine]]
name = "bare"
model = "bare"
urls = ["http://127.0.0.1:{engines[0]}", "http://127.0.0.1:{engines[1]}"]
{limit}
"""
LOADERS = 2
DIFFERENT = 64  # entries of the hits


class Kind(NamedTuple):
    """Requests of one kind: `hits` are stored before; `local`: the size of the local cache."""

    name: str
    stream: bool
    hits: bool
    local: str = "64MiB"


KINDS = [
    Kind("hit, JSON, from memory", stream=False, hits=True),
    Kind("hit, JSON, from Redis", stream=False, hits=True, local="0B"),
    Kind("miss, JSON", stream=False, hits=False),
    Kind(f"miss, stream of {EVENTS} events", stream=True, hits=False),
]


class Usage(NamedTuple):
    """CPU seconds so far of each part."""

    router: float
    redis: float
    engines: float
    load: float


def generate(port: int, kind: Kind, name: str, connections: int, requests: int, results: Any) -> None:
    """The main function of a process of load. It reports its CPU seconds and those that passed."""
    source = bodies(stream=kind.stream, different=DIFFERENT if kind.hits else None, name="" if kind.hits else name)
    started, before = time.perf_counter(), time.process_time()
    result = asyncio.run(load(port, source, connections=connections, requests=requests))
    passed, cpu = time.perf_counter() - started, time.process_time() - before
    if not name.startswith("warm") and set(result.caches) != ({"HIT"} if kind.hits else {"MISS"}):
        raise RuntimeError(f"{kind.name}: X-Cache was {dict(result.caches)}")
    results.put((cpu, passed))


async def run_load(port: int, kind: Kind, name: str, connections: int, requests: int) -> tuple[float, float]:
    """CPU seconds of the load, and the seconds of its slowest process."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    share = (port, kind)
    processes = [
        context.Process(
            target=generate,
            args=(*share, f"{name}-{number}", connections // LOADERS, requests // LOADERS, results),
        )
        for number in range(LOADERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
        if process.exitcode:
            raise RuntimeError(f"the load of {kind.name} failed")
    reports = [results.get() for _ in processes]
    return sum(cpu for cpu, _ in reports), max(seconds for _, seconds in reports)


@contextlib.asynccontextmanager
async def running(
    workers: int, kind: Kind, max_in_flight: int
) -> AsyncIterator[tuple[RouterProcess, RedisServer, list[int]]]:
    """A router that is ready, its Redis, and the process ids of the engines."""
    redis = RedisServer()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(redis.remove)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        await redis.start()
        engines = [await stack.enter_async_context(started_script("bare_engine.py")) for _ in range(2)]
        text = CONFIGURATION.format(
            workers=workers, redis=redis.url, local=kind.local, engines=[port for port, _ in engines],
            limit=f"max_in_flight = {max_in_flight}" if max_in_flight else "",
        )  # fmt: skip
        router = RouterProcess(Path(folder), text)
        stack.callback(router.kill)
        router.start(argv=[*ROUNDHOUSE, "serve", "-c", str(router.config)])
        await router.wait_until_ready()
        # /readyz is one worker's answer; the supervisor logs when all are ready.
        await eventually(lambda: "ready: Roundhouse serves on" in router.log.read_text(), timeout=START_TIMEOUT)
        yield router, redis, [pid for _, pid in engines]


async def usage(router: RouterProcess, redis: RedisServer, engines: list[int], load_cpu: float) -> Usage:
    fields = await redis.command("INFO", "cpu")
    return Usage(
        sum(map(process_cpu, router.worker_pids() or {router.process.pid})),
        sum(float(fields[f"used_cpu_{kind}"]) for kind in ("user", "sys")),
        sum(map(cpu_seconds, engines)),
        load_cpu,
    )


def process_cpu(pid: int) -> float:
    """The CPU seconds of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int(Path(task, "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def measure(workers: int, kind: Kind, connections: int, requests: int, max_in_flight: int) -> dict[str, Any]:
    async with running(workers, kind, max_in_flight) as (router, redis, engines):
        # Stores the entries of the hits in each worker's memory, or warms the code.
        for number in range(2):
            await run_load(router.port, kind, f"warm-{number}", connections, 1024)
        before = await usage(router, redis, engines, 0.0)
        load_cpu, seconds = await run_load(router.port, kind, "measured", connections, requests)
        after = await usage(router, redis, engines, load_cpu)
    parts = zip(Usage._fields, before, after, strict=True)
    spent = {name: (end - start) / requests * 1e6 for name, start, end in parts}
    redis_limit = 1e6 / spent["redis"] if spent["redis"] > 0.5 else None
    worker_limit = 1e6 / spent["router"]
    return {
        "kind": kind.name,
        "workers": workers,
        "requests": requests,
        "requests_per_second": round(requests / seconds),
        "cores_used": round(sum(spent.values()) * requests / seconds / 1e6, 2),
        **{f"{name}_us": round(each, 1) for name, each in spent.items()},
        "worker_limit_per_second": round(worker_limit),
        "redis_limit_per_second": redis_limit and round(redis_limit),
        "workers_that_fill_redis": redis_limit and round(redis_limit / worker_limit, 1),
    }


COLUMNS = {
    "kind": "requests", "workers": "workers", "requests_per_second": "requests/s", "cores_used": "cores used",
    "router_us": "router", "redis_us": "Redis", "engines_us": "engines", "load_us": "load",
    "worker_limit_per_second": "one worker's core, requests/s", "redis_limit_per_second": "Redis' core, requests/s",
    "workers_that_fill_redis": "workers that fill Redis' core",
}  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown; CPU times are in microseconds for each request."""
    lines = [f"| {' | '.join(COLUMNS.values())} |", f"|{' --- |' * len(COLUMNS)}"]
    lines += [f"| {' | '.join('-' if row[name] is None else str(row[name]) for name in COLUMNS)} |" for row in rows]
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=counts, default=[1, 2, 4], help="separated by commas (default: 1,2,4)")
    parser.add_argument("--connections", type=count, default=64, help="default: %(default)s")
    parser.add_argument("--requests", type=count, default=16000, help="default: %(default)s; a quarter for streams")
    parser.add_argument("--max-in-flight", type=int, default=64, help="of each of the two engines; 0 is no limit")
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if arguments.only in kind.name]
    if not kinds:
        parser.error(f"--only: no kind contains {arguments.only!r}: {'; '.join(kind.name for kind in KINDS)}")
    if arguments.connections < LOADERS:
        parser.error(f"--connections: at least {LOADERS}, one for each process of load")
    rows = []
    for kind in kinds:
        for workers in arguments.workers:
            requests = max(LOADERS, arguments.requests // 4 if kind.stream else arguments.requests)
            rows.append(await measure(workers, kind, arguments.connections, requests, arguments.max_in_flight))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=2))


if __name__ == "__main__":  # the processes of load import this module
    asyncio.run(main())
