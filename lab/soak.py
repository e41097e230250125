"""Half an hour of load while engines are killed, the configuration is reloaded and Redis restarts: what grows?

    .venv/bin/python -m lab.soak --minutes 30 --workers 2 --json soak.json

Run it in the root of the repository, on Linux. It starts a router, a redis-server and three simulated engines of one
model. The load is an open loop (benchmarks/open_loop.py) of hits, misses and followers, streams and JSON, and clients
that leave. Every 60 s an engine is killed (SIGKILL) and restarted after 2 s; every 90 s the router reloads one of three
configurations; in the middle, Redis is killed and restarted empty. Every 10 s, the memory and descriptors of the
router's processes are read, and what Redis holds.

The trend of memory (pages of one process only, USS) and descriptors is a line through the means of each minute after
the warm-up, with a 95 % confidence interval: `flat` if its upper end is below the limit, `growing` if its lower end is
above it, otherwise `unknown`: the run was too short. A failed request is explained if an engine or Redis died while it
ran, and it ended within 3 seconds of that.

Exit codes: 0, 1 if something grew, failed without a cause or was left, 2 for wrong use.
"""

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.arrivals import Mix, Phase
from benchmarks.chat_connection import LEFT, Response
from benchmarks.load_generator import LoadGenerator, LoadPlan
from benchmarks.open_loop import print_results
from benchmarks.options import at_least_zero, count, output_file, positive
from benchmarks.process_sample import sample_processes
from lab.soak_testbed import MODEL, SoakTestbed, soak_testbed
from lab.soak_verdict import Failure, SoakFindings, SoakSample, as_json, judge_soak

SAMPLE_EVERY: Final = 10.0
KILL_EVERY: Final = 60.0
RELOAD_EVERY: Final = 90.0
LEASES_WITHIN: Final = 60.0
"""Seconds after the last response in which leases must be gone; those that Redis did not release expire."""

MIX: Final = Mix(followers=0.15, new=0.15, stream=0.7, leave=0.05)
MAX_FAILURES: Final = 10_000


class Soak:
    """One run. `samples` and `failures` grow meanwhile."""

    def __init__(self, testbed: SoakTestbed, minutes: float, rate: float) -> None:
        self.testbed, self.seconds = testbed, minutes * 60
        self.samples: list[SoakSample] = []
        self.failures: list[Failure] = []
        plan = LoadPlan(
            url=testbed.router.url, model=MODEL, phases=[Phase(rate, self.seconds)], mix=MIX, prompts=500,
            max_tokens=32, name="soak",
        )  # fmt: skip
        self.load = LoadGenerator(plan, self._on_response)

    async def run(self, progress: Progress) -> int:
        """Returns the number of leases that are left."""
        task = progress.add_task("", total=self.seconds)
        testbed = self.testbed
        scale = min(1.0, self.seconds / 600)  # a short run has each fault too
        loading = asyncio.create_task(self.load.run())
        faults = [
            asyncio.create_task(testbed.kill_engines(KILL_EVERY * scale)),
            asyncio.create_task(testbed.reload_router(RELOAD_EVERY * scale)),
            asyncio.create_task(testbed.restart_redis(self.seconds / 2)),
        ]
        try:
            while not loading.done():
                await self._sample()
                last = self.samples[-1]
                text = f"{last.uss_mb:.0f} MB, {last.descriptors} fds, {self.load.results.sent:,} sent"
                text += f", {len(self.failures)} failed"
                progress.update(task, completed=testbed.elapsed, description=text)
                await asyncio.wait([loading], timeout=SAMPLE_EVERY * scale)
                for fault in [fault for fault in faults if fault.done()]:
                    fault.result()  # raises its error
            testbed.end.set()
            await asyncio.gather(loading, *faults)
        finally:
            for running in (loading, *faults):
                running.cancel()
            await asyncio.gather(loading, *faults, return_exceptions=True)
        return await self._leases_left()

    def _on_response(self, response: Response, seconds: float) -> None:
        if response.error not in (None, LEFT) and len(self.failures) < MAX_FAILURES:
            now = self.testbed.elapsed
            self.failures.append(Failure(now - seconds, now, str(response.error)))

    async def _sample(self) -> None:
        testbed = self.testbed
        at = testbed.elapsed
        router = sample_processes(testbed.router_pids)
        keys, redis_mb, clients = await testbed.redis_state()
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            metrics = (await http.get(f"{testbed.router.url}/metrics")).text.count("\n")
        sample = SoakSample(
            at=round(at, 1), rss_mb=router.rss_kb / 1000, pss_mb=router.pss_kb / 1000, uss_mb=router.uss_kb / 1000,
            descriptors=router.descriptors, threads=router.threads, in_flight=self.load.results.in_flight,
            metric_lines=metrics, redis_keys=keys, redis_mb=redis_mb, redis_clients=clients,
        )  # fmt: skip
        self.samples.append(sample)

    async def _leases_left(self) -> int:
        deadline = time.perf_counter() + LEASES_WITHIN
        while (leases := await self.testbed.leases()) and time.perf_counter() < deadline:  # noqa: ASYNC110 - in Redis
            await asyncio.sleep(0.5)
        return len(leases)


def show(soak: Soak, findings: SoakFindings, console: Console) -> None:
    print_results(soak.load.results, console)
    testbed, first, last = soak.testbed, soak.samples[0], soak.samples[-1]
    console.print(f"{len(testbed.deaths)} deaths of engines and Redis, {testbed.reloads} reloads")
    console.print(f"USS {first.uss_mb:.1f} MB at the start, {last.uss_mb:.1f} MB at the end")
    for name, trend, verdict in (
        ("MB", findings.memory, findings.memory_verdict),
        ("descriptors", findings.descriptors, findings.descriptors_verdict),
    ):
        if math.isnan(trend.per_hour):
            console.print(f"{name} per hour: {verdict}, since fewer than three minutes remain after the warm-up")
        else:
            console.print(f"{trend.per_hour:+.2f} {name} per hour ({trend.low:+.2f} to {trend.high:+.2f}): {verdict}")
    for cause, errors in findings.explained.items():
        console.print(f"failed with the death of {cause}: {errors.total()}, {dict(errors)}", markup=False)
    console.print(f"unexplained failures: {findings.unexplained.total()}, {dict(findings.unexplained)}", markup=False)
    console.print(f"leases left: {findings.leases_left}; failed reloads: {findings.failed_reloads}")
    console.print("passed" if findings.passed else "NOT passed")


def record(soak: Soak, findings: SoakFindings, arguments: argparse.Namespace) -> dict[str, Any]:
    """For JSON."""
    testbed = soak.testbed
    return {
        "minutes": arguments.minutes,
        "workers": arguments.workers,
        "rate": arguments.rate,
        "findings": as_json(findings),
        "events": testbed.events,
        "failures": [failure._asdict() for failure in soak.failures],
        "load": soak.load.results.summary(),
        "samples": [sample._asdict() for sample in soak.samples],
    }


async def run(arguments: argparse.Namespace, console: Console) -> int:
    warm_up = arguments.minutes * 60 / 3 if arguments.warm_up is None else arguments.warm_up * 60
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-soak-")))
        testbed = await stack.enter_async_context(soak_testbed(folder, arguments.workers))
        soak = Soak(testbed, arguments.minutes, arguments.rate)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, soak.load.stop)
        columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            leases_left = await soak.run(progress)
        findings = judge_soak(
            soak.samples, soak.failures, testbed.deaths, warm_up=warm_up, leases_left=leases_left,
            processes=max(1, len(testbed.router_pids)), failed_reloads=testbed.failed_reloads,
        )  # fmt: skip
        if arguments.json:
            arguments.json.write_text(json.dumps(record(soak, findings, arguments), indent=1) + "\n")
        if arguments.log:
            arguments.log.write_bytes(testbed.router.log.read_bytes())
        show(soak, findings, console)
    return 0 if findings.passed else 1


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m lab.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("--minutes", type=positive, default=30.0, help="default: %(default)s")
    add("--warm-up", type=at_least_zero, metavar="MINUTES", help="left out of the trends (default: a third)")
    add("--workers", type=count, default=1, help="of the router (default: %(default)s)")
    add("--rate", type=positive, default=50.0, help="requests per second (default: %(default)s)")
    add("--json", type=output_file, metavar="FILE", help="write samples, events and findings there")
    add("--log", type=output_file, metavar="FILE", help="keep the router's log there")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    return uvloop.run(run(parser().parse_args(argv), Console(width=None if sys.stdout.isatty() else 110)))


if __name__ == "__main__":
    sys.exit(main())
