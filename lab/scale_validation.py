"""The simulation beside real runs: the same arrivals are sent to real routers and simulated; the relative errors.

    .venv/bin/python -m lab.scale_validation [--seconds 30] [--only saturated] [--output FILE]

Two router processes, a real Redis and two simulated engines on this machine; a request's time begins when it was to be
sent (an open loop). The engines are paced by sleeping, and their slots are few, so that queueing decides, not the speed
of this machine. The last point has an engine of minimal cost and no queue: there, the CPU time is compared. The costs
are those of lab/scale_costs.py, which must have run on this machine.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.bare_engine import EVENTS
from benchmarks.options import input_file, output_file, positive
from benchmarks.processes import bare_engine, cpu_seconds
from lab.scale.costs import Costs, load_costs
from lab.scale.outcomes import Outcome, summarize
from lab.scale.playback import Playback
from lab.scale.popularity import Popularity
from lab.scale.speeds import simulated_engine
from lab.scale.system import Size
from lab.scale.trace import Asked, draw_trace, simulate
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.simulated_engine import SimulatedEngine

MODEL: Final = "simulated"
PROCESSES: Final = 2
TTL: Final = 8.0
QUEUE_TIMEOUT: Final = 3.0
FIRST_TOKEN: Final = 0.1
RATE: Final = 40.0
"""Tokens per second of each request at a simulated engine."""

MAX_LATE: Final = 0.1
"""Seconds by which a request may be sent late; with more, this machine decides, not what is simulated."""

FOREVER: Final = 1e9
BARE_INTERVAL: Final = 5.0
"""Milliseconds between two events of the engine of minimal cost."""

CONFIGURATION: Final = """
[router]
drain = "0s"
[cache]
url = "{redis}"
ttl = "{ttl}s"
stale_if_error = "0s"
timeout = "5s"
[timeouts]
queue = "{queue}s"
[[model]]
name = "{model}"
{engines}
"""
ENGINE: Final = """
[[engine]]
name = "engine-{number}"
model = "{model}"
url = "{url}"
max_in_flight = {slots}
"""


class Point(NamedTuple):
    """`rate` of requests per second; `slots`: of each process at each engine; `is_paced`: simulated engines."""

    name: str
    rate: float
    slots: int = 4
    is_paced: bool = True

    def asked(self, seconds: float) -> Asked:
        if self.is_paced:
            return Asked(self.rate, seconds, Popularity(300, 0.9, FOREVER), repeatable=0.7, low=20, high=60)
        return Asked(self.rate, seconds, Popularity(300, 0.9, FOREVER), repeatable=0.5, low=EVENTS, high=EVENTS)

    @property
    def size(self) -> Size:
        speed = simulated_engine(FIRST_TOKEN, RATE) if self.is_paced else simulated_engine(0.0, 1000 / BARE_INTERVAL)
        return Size(
            processes=PROCESSES,
            engines=2 if self.is_paced else 1,
            shards=1,
            speed=speed,
            max_in_flight=self.slots,
            max_num_seqs=256 if self.is_paced else 10_000,
            queue_timeout=QUEUE_TIMEOUT,
        )


# 16 slots of 1.08 s: 14.8 generations per second. Somewhat more than half of the requests are generations.
POINTS: Final = (
    Point("half of the slots", 10),
    Point("nearly all slots", 24),
    Point("saturated", 32),
    Point("overloaded", 60),
    Point("CPU", 150, slots=5000, is_paced=False),
)


@contextlib.asynccontextmanager
async def running(point: Point) -> AsyncIterator[tuple[list[RouterProcess], RedisServer]]:
    redis = RedisServer()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(redis.remove)
        await redis.start()
        if point.is_paced:
            options: dict[str, Any] = {"ttft_ms": int(FIRST_TOKEN * 1000), "tokens_per_second": RATE}
            urls = [
                (await stack.enter_async_context(SimulatedEngine(model=MODEL, kv_blocks=65536, **options))).url
                for _ in range(2)
            ]
        else:
            urls = [f"http://127.0.0.1:{await stack.enter_async_context(bare_engine(BARE_INTERVAL))}"]
        engines = "".join(
            ENGINE.format(number=number, model=MODEL, url=url, slots=point.slots) for number, url in enumerate(urls)
        )
        text = CONFIGURATION.format(
            redis=redis.url, ttl=int(TTL), queue=int(QUEUE_TIMEOUT), model=MODEL, engines=engines
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        routers = [RouterProcess(folder, text, name=f"router-{number}") for number in range(PROCESSES)]
        for router in routers:
            stack.callback(router.kill)
            router.start()
        for router in routers:
            await router.wait_until_ready()
        yield routers, redis


async def redis_cpu(redis: RedisServer) -> float:
    info = await redis.command("INFO", "cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def real_run(point: Point, seconds: float, seed: int) -> tuple[list[Outcome], float, float]:
    """The outcomes, and the utilization of a router process (the mean) and of Redis, over `seconds`."""
    trace = draw_trace(point.asked(seconds), PROCESSES, seed)
    async with running(point) as (routers, redis):
        warm = [each._replace(prompt=each.prompt._replace(rank=-1)) for each in trace[:20]]
        await Playback([router.port for router in routers], MODEL).run(warm)
        cpu, redis_before = sum(cpu_seconds(router.process.pid) for router in routers), await redis_cpu(redis)
        playback = Playback([router.port for router in routers], MODEL)
        outcomes = await playback.run(trace)
        cpu = sum(cpu_seconds(router.process.pid) for router in routers) - cpu
        if playback.late > MAX_LATE:
            print(f"{point.name}: a request was sent {playback.late:.2f} s late: the machine is overloaded")
        return outcomes, cpu / PROCESSES / seconds, (await redis_cpu(redis) - redis_before) / seconds


def figures(outcomes: list[Outcome], seconds: float, router: float, redis: float) -> dict[str, float]:
    """What is compared. Times in seconds."""
    summary = summarize(outcomes, seconds)
    return {
        "requests": summary.requests,
        "hit": summary.hit,
        "follower": summary.follower,
        "miss": summary.miss,
        "refused": summary.refused,
        "answered_per_s": summary.answered_per_s,
        "miss_first_mean": summary.miss_first_mean,
        "miss_first_p99": summary.miss_first_p99,
        "router_utilization": router,
        "redis_utilization": redis,
    }


async def compare(point: Point, costs: Costs, seconds: float, seed: int) -> dict[str, Any]:
    outcomes, router, redis = await real_run(point, seconds, seed)
    trace = draw_trace(point.asked(seconds), PROCESSES, seed)
    simulated, load = simulate(trace, point.size, costs, seconds=seconds, ttl=TTL, local_entries=3000, seed=seed)
    real = figures(outcomes, seconds, router, redis)
    predicted = figures(simulated, seconds, load.process_mean, load.shard_mean)
    return {"point": point.name, "rate": point.rate, "seconds": seconds, "real": real, "simulated": predicted}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: real, simulated, and the relative error; of shares, the difference."""
    yield "| point | figure | real | simulated | error |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        for name, real in row["real"].items():
            simulated = row["simulated"][name]
            is_share = name in ("hit", "follower", "miss", "refused")
            if is_share:
                shown = f"| {real:.1%} | {simulated:.1%} | {(simulated - real) * 100:+.1f} points |"
            else:
                error = f"{simulated / real - 1:+.0%}" if real else ""
                shown = f"| {real:.3g} | {simulated:.3g} | {error} |"
            yield f"| {row['point']}, {row['rate']:g}/s | {name} {shown}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=30.0, help="of each point")
    parser.add_argument("--only", default="", help="only points whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=input_file, help="other costs than the committed ones")
    parser.add_argument("--output", type=output_file, help="write the figures there as JSON")
    arguments = parser.parse_args()
    costs = load_costs(arguments.costs) if arguments.costs else load_costs()
    points = [point for point in POINTS if arguments.only in point.name]
    if not points:
        parser.error(f"--only: no point contains {arguments.only!r}: {'; '.join(point.name for point in POINTS)}")
    rows = [await compare(point, costs, arguments.seconds, arguments.seed) for point in points]
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=2) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    asyncio.run(main())
