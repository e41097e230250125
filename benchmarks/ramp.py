"""A ramp to many concurrent streams through one router process: errors, event gaps, memory, CPU time, descriptors.

    .venv/bin/python -m benchmarks.ramp [--streams 2000] [--events-per-second 10] [--ramp 20] [--hold 30] [--json FILE]

Run it in the root of the repository, on Linux. It starts a router with its default settings, a Redis and engines of
minimal cost (benchmarks/bare_engine.py). Streams of `--events` events begin at a constant rate until `--streams` are
open; then each that ends is replaced, for `--hold` seconds. No two requests are equal. All processes share this
machine.

The figures of the router are those of the second half of the hold: CPU time as the scheduler counts it, memory as the
growth of resident memory since the router was warm, per open stream. `event_gap` is the time between two reads of a
stream at the client. With `--direct`, the same streams are read from the engines first, to compare the gaps.

Exit codes: 0, 1 if a request failed or the generator was too slow, 2 for wrong use.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.arrivals import Mix, Phase
from benchmarks.descriptors import TooFewDescriptorsError, raise_descriptor_limit
from benchmarks.load_generator import LoadGenerator, LoadPlan
from benchmarks.load_results import LoadResults
from benchmarks.open_loop import print_results
from benchmarks.options import at_least_zero, count, output_file, positive
from benchmarks.process_sample import sample_processes
from benchmarks.processes import bare_engine, cpu_seconds, running_routers

PER_STREAM: Final = 2
"""Descriptors that a router needs per stream: the client's and the engine's connection."""

WARM_UP_RATE: Final = 100.0  # requests per second
_REFRESH: Final = 0.5  # seconds


def plan_of(arguments: argparse.Namespace, url: str, name: str) -> LoadPlan:
    return LoadPlan(
        url=url, model="bare", phases=[Phase(arguments.streams / arguments.ramp, arguments.ramp)], poisson=False,
        hold=arguments.hold, mix=Mix(new=1.0), name=name, most_in_flight=arguments.streams,
    )  # fmt: skip


class RouterGauge:
    """Reads a router's process at two times of a load, and gives its figures between them."""

    def __init__(self, pid: int, generator: LoadGenerator) -> None:
        self._pid, self._generator = pid, generator
        self._rss_before = sample_processes([pid]).rss_kb
        self._begun: tuple[float, float, int] | None = None

    def begin(self) -> None:
        """Counts CPU time and events from now on, once."""
        if self._begun is None:
            self._begun = self._now()

    def figures(self) -> dict[str, Any]:
        """Those since `begin`, for JSON; empty before it."""
        if self._begun is None:
            return {}
        begun, now = self._begun, self._now()
        seconds, cpu, events = (after - before for before, after in zip(begun, now, strict=True))
        streams, sample = self._generator.results.in_flight, sample_processes([self._pid])
        return {
            "streams": streams,
            "rss_mb": round(sample.rss_kb / 1000, 1),
            "rss_kb_per_stream": round((sample.rss_kb - self._rss_before) / max(1, streams), 1),
            "descriptors": sample.descriptors,
            "events_per_second": round(events / seconds),
            "cpu_cores": round(cpu / seconds, 3),
            "cpu_us_per_event": round(cpu * 1e6 / max(1, events), 1),
        }

    def _now(self) -> tuple[float, float, int]:
        return self._generator.elapsed, cpu_seconds(self._pid), self._generator.results.gaps.count


async def measure(
    arguments: argparse.Namespace, url: str, name: str, pid: int | None, progress: Progress
) -> tuple[LoadResults, dict[str, Any]]:
    """The results of the load, and the figures of the router; `pid`: its process, None for none."""
    generator = LoadGenerator(plan_of(arguments, url, name))
    gauge = None if pid is None else RouterGauge(pid, generator)
    task = progress.add_task(name, total=arguments.ramp + arguments.hold)
    running = asyncio.create_task(generator.run())
    figures: dict[str, Any] = {}
    while not running.done():
        results, elapsed = generator.results, generator.elapsed
        text = f"{name}: {results.in_flight:,} streams, {results.gaps.count:,} events, {results.failed:,} failed"
        progress.update(task, completed=elapsed, description=text)
        if gauge is not None and arguments.ramp + arguments.hold / 2 <= elapsed < arguments.ramp + arguments.hold:
            figures = gauge.figures()  # the last ones before the end stay
            gauge.begin()
        await asyncio.wait([running], timeout=_REFRESH)
    return await running, figures


async def run(arguments: argparse.Namespace, console: Console) -> int:
    try:
        # The router inherits the limit.
        raise_descriptor_limit(PER_STREAM * arguments.streams)
    except TooFewDescriptorsError as error:
        console.print(f"ramp: {error}", style="red", markup=False)
        return 2
    interval = 1000 / arguments.events_per_second
    measured: dict[str, tuple[LoadResults, dict[str, Any]]] = {}
    async with AsyncExitStack() as stack:
        columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        if arguments.direct:
            port = await stack.enter_async_context(bare_engine(interval, arguments.events))
            measured["direct"] = await measure(arguments, f"http://127.0.0.1:{port}", "direct", None, progress)
        routers = running_routers(interval=interval, events=arguments.events)
        (router,) = await stack.enter_async_context(routers)
        phases = [Phase(WARM_UP_RATE, arguments.warm_up)]
        await LoadGenerator(LoadPlan(router.url, "bare", phases, mix=Mix(stream=0.0), prompts=64)).run()
        measured["router"] = await measure(arguments, router.url, "router", router.process.pid, progress)
    for name, (results, figures) in measured.items():
        console.print(f"{name}:")
        print_results(results, console)
        if figures:
            console.print(json.dumps(figures), markup=False)
    if arguments.json:
        report = {name: {**results.summary(), "router": figures} for name, (results, figures) in measured.items()}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(results.failed or results.doubts for results, _ in measured.values()))


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.ramp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("--streams", type=count, default=2000, help="default: %(default)s")
    add("--events-per-second", type=positive, default=10.0, help="of each stream (default: %(default)s)")
    add("--events", type=count, default=100, help="of each stream (default: %(default)s)")
    add("--ramp", type=positive, default=20.0, metavar="SECONDS", help="default: %(default)s")
    add("--hold", type=positive, default=30.0, metavar="SECONDS", help="default: %(default)s")
    add("--warm-up", type=at_least_zero, default=3.0, metavar="SECONDS", help="of JSON requests (default: %(default)s)")
    add("--direct", action="store_true", help="also without a router")
    add("--json", type=output_file, metavar="FILE", help="write the figures there")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    return uvloop.run(run(parser().parse_args(argv), Console(width=None if sys.stdout.isatty() else 110)))


if __name__ == "__main__":
    sys.exit(main())
