"""An open-loop load on any OpenAI-compatible server: hits, misses and followers at a given rate.

    .venv/bin/python -m benchmarks.open_loop --rate 50 --duration 60s --new 0.2 --followers 0.1
    .venv/bin/python -m benchmarks.open_loop --ramp 50:30s,200:30s,400:1m --json ramp.json
    .venv/bin/python -m benchmarks.open_loop --concurrency-ramp 2000 --duration 90s --new 1

Run it in the root of the repository. A request's time begins when it was to be sent, so a server that is slow is not
asked less. `POPULAR` prompts are drawn from a Zipf distribution: misses at first, hits later. `--new` is the share of
requests with a prompt that was never sent, `--followers` the share that repeats a prompt that is in flight.

The key of the API is taken from the variable OPENAI_API_KEY. Ctrl-C ends the load early; the figures so far are shown.
Exit codes: 0, 1 if a request failed or the generator was too slow for valid figures, 2 for wrong use.
"""

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from typing import Final

import httpx
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from benchmarks.arrivals import Mix, Phase, parse_phases, seconds_of
from benchmarks.descriptors import TooFewDescriptorsError, raise_descriptor_limit
from benchmarks.load_generator import LoadGenerator, LoadPlan
from benchmarks.load_results import LoadResults, results_table
from benchmarks.options import count, output_file

RAMP: Final = 30.0
"""Default seconds until --concurrency-ramp is reached."""

_REFRESH: Final = 0.5  # seconds


async def first_model(url: str, api_key: str | None) -> str:
    """The first model that the server lists. Raises httpx.HTTPError, or ValueError without any or without a server."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        try:
            response = (await http.get(f"{url.rstrip('/')}/v1/models", headers=headers)).raise_for_status()
        except httpx.TransportError as error:
            raise ValueError(f"{url}: {error}") from error
    models = [str(model["id"]) for model in response.json()["data"] if model["id"] != "auto"]
    if not models:
        raise ValueError("the server lists no model")
    return models[0]


def plan_of(arguments: argparse.Namespace, model: str) -> LoadPlan:
    """Raises ValueError."""
    hold = 0.0
    duration = seconds_of(arguments.duration)
    if arguments.concurrency_ramp:
        ramp = seconds_of(arguments.ramp_time)
        if not ramp:
            raise ValueError("--ramp-time must be above 0")
        phases = [Phase(arguments.concurrency_ramp / ramp, ramp)]
        hold = max(0.0, duration - ramp)
    elif arguments.ramp:
        phases = parse_phases(arguments.ramp)
    else:
        phases = parse_phases(f"{arguments.rate}:{arguments.duration}")
    mix = Mix(arguments.followers, arguments.new, arguments.stream_share, arguments.leave_share)
    if not all(0 <= share <= 1 for share in (*mix, mix.followers + mix.new)):
        raise ValueError("shares are 0 to 1, and those of followers and new prompts together at most 1")
    return LoadPlan(
        url=arguments.url, model=model, phases=phases, hold=hold, mix=mix,
        poisson=arguments.arrivals == "poisson" and not arguments.concurrency_ramp, prompts=arguments.prompts,
        zipf=arguments.zipf, max_tokens=arguments.max_tokens, seed=arguments.seed,
        timeout=seconds_of(arguments.timeout),
        name=arguments.name if arguments.name is not None else secrets.token_hex(4),
        most_in_flight=max(arguments.most_in_flight, arguments.concurrency_ramp or 0),
        api_key=os.environ.get("OPENAI_API_KEY") or None,
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.open_loop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("--url", default="http://127.0.0.1:8080", help="without /v1 (default: %(default)s)")
    add("--model", help="default: the first that the server lists")
    add("--rate", type=float, default=50.0, help="requests per second (default: %(default)s)")
    add("--duration", default="30s", help="such as 90s or 5m (default: %(default)s)")
    add("--ramp", help='phases in place of --rate and --duration: "50:30s,200:30s"')
    add("--concurrency-ramp", type=count, metavar="N", help="N concurrent requests; one that ends is replaced")
    add("--ramp-time", default=f"{RAMP:g}s", help="time until they are reached (default: %(default)s)")
    add("--arrivals", choices=("poisson", "constant"), default="poisson", help="intervals (default: %(default)s)")
    add("--prompts", type=int, default=1000, help="number of popular prompts (default: %(default)s)")
    add("--zipf", type=float, default=1.1, help="exponent of their distribution (default: %(default)s)")
    add("--new", type=float, default=0.0, metavar="SHARE", help="requests with a prompt that was never sent")
    add("--followers", type=float, default=0.0, metavar="SHARE", help="requests that repeat one in flight")
    add("--stream-share", type=float, default=1.0, metavar="SHARE", help="requests that stream (default: all)")
    add("--leave-share", type=float, default=0.0, metavar="SHARE", help="streams whose client leaves early")
    add("--max-tokens", type=count, default=64, help="default: %(default)s")
    add("--timeout", default="120s", help="per request (default: %(default)s)")
    add("--most-in-flight", type=count, default=10_000, help="more are not sent (default: %(default)s)")
    add("--name", help="of the prompts; the same name asks the same ones again (default: random)")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add("--json", type=output_file, metavar="FILE", help="write the figures there")
    return result


class _ProgressLine:
    """A line of progress on stderr; nothing if that is no terminal."""

    def __init__(self, seconds: float) -> None:
        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self.progress.add_task("", total=seconds)

    def show(self, generator: LoadGenerator) -> None:
        results = generator.results
        text = f"{results.sent:,} sent, {results.in_flight:,} in flight, {results.failed:,} failed"
        self.progress.update(self._task, completed=generator.elapsed, description=text)


async def _run(arguments: argparse.Namespace, console: Console) -> int:
    try:
        plan = plan_of(arguments, arguments.model or "")
        if not plan.model:
            plan = plan._replace(model=await first_model(arguments.url, os.environ.get("OPENAI_API_KEY")))
        generator = LoadGenerator(plan)
        raise_descriptor_limit(arguments.concurrency_ramp or 0)
    except (ValueError, httpx.HTTPError, TooFewDescriptorsError) as error:
        console.print(f"open_loop: {error}", style="red", markup=False)
        return 2
    line = _ProgressLine(plan.seconds)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, generator.stop)
    with line.progress:
        running = asyncio.create_task(generator.run())
        while not running.done():
            line.show(generator)
            await asyncio.wait([running], timeout=_REFRESH)
        results = await running
    if arguments.json:
        arguments.json.write_text(json.dumps({"plan": _shown(plan), **results.summary()}, indent=2) + "\n")
    print_results(results, console)
    return 1 if results.failed or results.doubts else 0


def _shown(plan: LoadPlan) -> dict[str, object]:
    fields = plan._asdict()
    del fields["api_key"]
    return {**fields, "mix": plan.mix._asdict(), "phases": [phase._asdict() for phase in plan.phases]}


def print_results(results: LoadResults, console: Console) -> None:
    """Counts and the table."""
    rate = results.sent / results.seconds if results.seconds else 0.0
    console.print(
        f"{results.sent:,} sent in {results.seconds:.1f} s ({rate:.1f} per second), {results.completed:,} completed, "
        f"{results.left:,} left, {results.failed:,} failed; at most {results.most_in_flight:,} in flight"
    )
    console.print(results_table(results))
    for kind, failed in results.errors.most_common():
        console.print(f"{failed:,} x {kind}", markup=False)
    for doubt in results.doubts:
        console.print(f"The figures are not valid: {doubt}", style="red")


def main(argv: Sequence[str] | None = None) -> int:
    return uvloop.run(_run(parser().parse_args(argv), Console(width=None if sys.stdout.isatty() else 110)))


if __name__ == "__main__":
    sys.exit(main())
