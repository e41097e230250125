"""The latency that a router adds at a given rate: the same load through the router and directly at its engines.

    .venv/bin/python -m benchmarks.added_latency [--rate 50] [--rounds 4] [--seconds 15] [--json FILE]
    .venv/bin/python -m benchmarks.added_latency --url http://127.0.0.1:8080 --engine-url http://127.0.0.1:8001

Run it in the root of the repository. Without `--url`, it starts a router, a Redis and a simulated engine (first token
after 50 ms, then 50 per second). In each round, the engine and the router get the same load for `--seconds` each, by
turns first. The load is an open loop: a mix of popular prompts, new ones, and repetitions of those in flight.

`added` is the difference of the percentiles of all rounds: the router's misses, and all its requests, less the engine's
requests. A hit is faster than the engine, so only misses show what the router costs. `spread` is the smallest and the
largest difference of a single round. Router, engine, Redis and generator share this machine.

Exit codes: 0, 1 if the target is missed, a request failed or the generator was too slow, 2 for wrong use.
"""

import argparse
import json
import math
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import uvloop
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.arrivals import Mix, Phase
from benchmarks.latency_histogram import LatencyHistogram
from benchmarks.load_generator import LoadGenerator, LoadPlan
from benchmarks.load_results import LoadResults
from benchmarks.open_loop import first_model
from benchmarks.options import count, output_file, positive
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import LLAMA
from tests.support.simulated_engine import SimulatedEngine

TARGET: Final = 0.15
"""Seconds that a router may add to the first event of 99 % of the misses."""

MIX: Final = Mix(followers=0.15, new=0.3)
CONFIGURATION: Final = """
[router]
[cache]
url = "{redis}"
[[model]]
name = "llama"
[[engine]]
name = "engine"
model = "llama"
url = "{engine}"
served_model = "{served}"
"""


class Round(NamedTuple):
    """The results of one round."""

    direct: LoadResults
    router: LoadResults


class Added(NamedTuple):
    """Seconds that the router adds to a percentile; `low` and `high`: of the single rounds."""

    all_rounds: float
    low: float
    high: float


def histogram_of(results: Sequence[LoadResults], cache: str | None, what: str) -> LatencyHistogram:
    """The times of several results together. `cache`: a status, None for all; `what`: "first" or "total"."""
    merged = LatencyHistogram()
    for result in results:
        times = result.all_times if cache is None else result.times[cache]
        merged.include(times.first if what == "first" else times.total)
    return merged


def added(rounds: Sequence[Round], cache: str | None, what: str, share: float) -> Added:
    """The difference of a percentile; nan if there is no response with this status."""

    def difference(some: Sequence[Round]) -> float:
        through = histogram_of([each.router for each in some], cache, what)
        return through.percentile(share) - histogram_of([each.direct for each in some], None, what).percentile(share)

    single = [difference([each]) for each in rounds]
    known = [value for value in single if not math.isnan(value)]
    return Added(difference(rounds), min(known, default=math.nan), max(known, default=math.nan))


async def measure(router: LoadPlan, direct: LoadPlan, rounds: int, progress: Progress) -> list[Round]:
    """The plans by turns; each round has prompts of its own."""
    task = progress.add_task("direct and through the router", total=2 * rounds)
    result = []
    for number in range(rounds):
        by_plan: dict[str, LoadResults] = {}
        # The second one finds the machine as the first one has left it, so they take turns.
        for name, plan in (("direct", direct), ("router", router))[:: 1 if number % 2 == 0 else -1]:
            named = plan._replace(name=f"{plan.name} {number}", seed=number)
            by_plan[name] = await LoadGenerator(named).run()
            progress.advance(task)
        result.append(Round(by_plan["direct"], by_plan["router"]))
    return result


@asynccontextmanager
async def own_processes() -> AsyncIterator[tuple[str, str]]:
    """The URLs of a router and of its engine."""
    redis = RedisServer()
    try:
        with tempfile.TemporaryDirectory(prefix="rh-") as folder:
            await redis.start()
            async with SimulatedEngine(LLAMA, ttft_ms=50, tokens_per_second=50, max_num_seqs=1024) as engine:
                text = CONFIGURATION.format(redis=redis.url, engine=engine.url, served=LLAMA)
                router = RouterProcess(Path(folder), text)
                router.start()
                try:
                    await router.wait_until_ready()
                    yield router.url, engine.url
                finally:
                    router.kill()
    finally:
        redis.remove()


def table_of(rounds: Sequence[Round]) -> Table:
    """Milliseconds."""
    table = Table("milliseconds", "count", "p50", "p99", "added p50", "added p99", "spread p99", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    routers = [each.router for each in rounds]
    for what, name in (("first", "first event"), ("total", "last byte")):
        direct = histogram_of([each.direct for each in rounds], None, what)
        table.add_row(f"direct, {name}", f"{direct.count:,}", _ms(direct.percentile(0.5)), _ms(direct.percentile(0.99)))
        for cache in (*sorted({name for result in routers for name in result.times}), None):
            times = histogram_of(routers, cache, what)
            median, p99 = (added(rounds, cache, what, share) for share in (0.5, 0.99))
            table.add_row(
                f"{cache or 'all'}, {name}", f"{times.count:,}",
                _ms(times.percentile(0.5)), _ms(times.percentile(0.99)),
                _ms(median.all_rounds), _ms(p99.all_rounds), f"{_ms(p99.low)} to {_ms(p99.high)}",
            )  # fmt: skip
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def record(rounds: Sequence[Round], arguments: argparse.Namespace) -> dict[str, Any]:
    """For JSON."""
    figures = {
        f"{cache or 'all'} {what} p{share * 100:g}": added(rounds, cache, what, share)._asdict()
        for cache in ("MISS", None)
        for what in ("first", "total")
        for share in (0.5, 0.99)
    }
    return {
        "rate": arguments.rate,
        "target_seconds": TARGET,
        "added_seconds": figures,
        "rounds": [{"direct": each.direct.summary(), "router": each.router.summary()} for each in rounds],
    }


async def run(arguments: argparse.Namespace, console: Console) -> int:
    async def compare(url: str, engine_url: str) -> list[Round]:
        name = secrets.token_hex(4)
        plan = LoadPlan(
            url=url, model=await first_model(url, None), phases=[Phase(arguments.rate, arguments.seconds)], mix=MIX,
            prompts=arguments.prompts, max_tokens=arguments.max_tokens, name=name,
        )  # fmt: skip
        direct = plan._replace(url=engine_url, model=await first_model(engine_url, None))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            return await measure(plan, direct, arguments.rounds, progress)

    if bool(arguments.url) != bool(arguments.engine_url):
        console.print("added_latency: --url and --engine-url belong together", style="red")
        return 2
    try:
        if arguments.url:
            rounds = await compare(arguments.url, arguments.engine_url)
        else:
            async with own_processes() as (url, engine_url):
                rounds = await compare(url, engine_url)
    except (httpx.HTTPError, ValueError) as error:
        console.print(f"added_latency: {error}", style="red", markup=False)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps(record(rounds, arguments), indent=1) + "\n")
    return show(rounds, console)


def show(rounds: Sequence[Round], console: Console) -> int:
    console.print(table_of(rounds))
    results = [result for each in rounds for result in each]
    doubts = {doubt for result in results for doubt in result.doubts}
    failed = sum(result.failed for result in results)
    p99 = added(rounds, "MISS", "first", 0.99).all_rounds
    met = p99 < TARGET
    console.print(
        f"The router adds {p99 * 1000:.1f} ms to the first event of 99 % of the misses; the target of less than "
        f"{TARGET * 1000:.0f} ms is {'met' if met else 'missed'}. {failed} requests failed."
    )
    for doubt in sorted(doubts):
        console.print(f"The figures are not valid: {doubt}", style="red")
    return 0 if met and not failed and not doubts else 1


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.added_latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--rate", type=positive, default=50.0, help="requests per second (default: %(default)s)")
    add("--rounds", type=count, default=4, help="default: %(default)s")
    add("--seconds", type=positive, default=15.0, help="of each half of a round (default: %(default)s)")
    add("--prompts", type=count, default=200, help="popular ones of each round (default: %(default)s)")
    add("--max-tokens", type=count, default=32, help="default: %(default)s")
    add("--url", help="a running router without limits, with an open API")
    add("--engine-url", help="its engine")
    add("--json", type=output_file, metavar="FILE", help="write the figures there")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    return uvloop.run(run(parser().parse_args(argv), Console(width=None if sys.stdout.isatty() else 110)))


if __name__ == "__main__":
    sys.exit(main())
