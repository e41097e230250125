"""What people wait longer for their first token while a batch runs.

    .venv/bin/python -m benchmarks.batch_latency [--rounds 3] [--seconds 30] [--cases learned,hits] [--json FILE]

Run it in the root of the repository. It starts a Redis, two simulated engines with `--slots` slots each, and a router.
People ask in an open loop, at a rate that takes half of the slots, each something new. The file of the batch has
more lines than end meanwhile; it is paused for the rounds without it. Before each round with it, people ask for
`--settle` seconds in which the batch goes on; the first of them, in which limits are learned, is shown as well.

`learned`: the router does not know the engines' slots. `configured`: it has them as `max_in_flight`. `hits`: people ask
for the same few things, and the file is in the cache: the engines are stopped, and both share the router's process.

Figures are seconds from the intended time of a request to its first event.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arrivals import Mix, Phase
from benchmarks.latency_histogram import LatencyHistogram
from benchmarks.load_generator import LoadGenerator, LoadPlan
from benchmarks.load_results import LoadResults
from benchmarks.options import count, output_file, positive
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import LLAMA
from tests.support.simulated_engine import SimulatedEngine

CASES: Final = ("learned", "configured", "hits")
ENGINES: Final = 2
TOKENS: Final = 10
"""Of each answer. Few events a second: all processes share this machine."""

SPEED: Final = 5
"""Tokens per second."""

TTFT: Final = 0.05  # seconds
PAUSES_WITHIN: Final = 10.0
"""Seconds after which no line runs any more."""

_LOOK_INTERVAL: Final = 0.5  # seconds
_MAX_LOOKS: Final = 1200

HIT_RATE: Final = 50.0
HIT_LINES: Final = 20_000

CONFIGURATION: Final = """
[router]
[cache]
url = "{redis}"
[batch]
folder = "{folder}"
max_in_flight = {in_flight}
max_lines = 1_000_000
[[model]]
name = "llama"
"""
ENGINE: Final = """
[[engine]]
name = "{name}"
model = "llama"
url = "{url}"
served_model = "{served}"
"""


class Round(NamedTuple):
    """`lines`: that ended per second beside the people."""

    alone: LoadResults
    beside: LoadResults
    lines: float


class Measured(NamedTuple):
    """`learning`: while the limits of the engines were learned."""

    case: str
    learning: LoadResults
    rounds: Sequence[Round]


class Bench:
    """A router beside its engines, and one batch."""

    def __init__(self, url: str, engines: Sequence[SimulatedEngine]) -> None:
        self.url = url
        self.engines = engines
        self._http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)
        self._batch = ""

    async def aclose(self) -> None:
        await self._http.aclose()

    async def begin(self, lines: bytes) -> None:
        files = {"file": ("in.jsonl", lines)}
        uploaded = await self._http.post("/v1/files", data={"purpose": "batch"}, files=files)
        body = {
            "input_file_id": uploaded.raise_for_status().json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        self._batch = (await self._http.post("/v1/batches", json=body)).raise_for_status().json()["id"]

    async def change(self, action: str) -> None:
        (await self._http.post(f"/v1/batches/{self._batch}/{action}")).raise_for_status()

    async def completed(self) -> int:
        shown = (await self._http.get(f"/v1/batches/{self._batch}")).raise_for_status().json()
        return int(shown["request_counts"]["completed"])

    async def people(self, arguments: argparse.Namespace, rate: float, seconds: float, *, popular: bool) -> LoadResults:
        mix = Mix() if popular else Mix(new=1.0)
        name = "popular" if popular else secrets.token_hex(4)
        plan = LoadPlan(
            url=self.url, model="llama", phases=[Phase(rate, seconds)], mix=mix, prompts=20, max_tokens=TOKENS,
            name=name, seed=arguments.seed,
        )  # fmt: skip
        return await LoadGenerator(plan).run()


def lines_of(number: int, name: str) -> bytes:
    lines = []
    for index in range(number):
        messages = [{"role": "user", "content": f"What is {name} of {index}?"}]
        body = {"model": "llama", "messages": messages, "max_tokens": TOKENS, "ignore_eos": True}
        line = {"custom_id": str(index), "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    return "\n".join(lines).encode()


@contextlib.asynccontextmanager
async def started(case: str, slots: int) -> AsyncIterator[Bench]:
    redis = RedisServer()
    speed: dict[str, Any] = {"ttft_ms": int(1000 * TTFT), "tokens_per_second": SPEED, "max_num_seqs": slots}
    if case == "hits":
        speed = {"max_num_seqs": 1000}
    try:
        async with contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-"))
            await redis.start()
            engines = [await stack.enter_async_context(SimulatedEngine(LLAMA, **speed)) for _ in range(ENGINES)]
            in_flight = 8 if case == "hits" else 4 * slots
            text = CONFIGURATION.format(redis=redis.url, folder=folder, in_flight=in_flight)
            for number, engine in enumerate(engines):
                text += ENGINE.format(name=f"e{number}", url=engine.url, served=LLAMA)
                if case == "configured":
                    text += f"max_in_flight = {slots}\n"
            router = RouterProcess(Path(folder), text)
            router.start()
            stack.callback(router.kill)
            await router.wait_until_ready()
            bench = Bench(router.url, engines)
            stack.push_async_callback(bench.aclose)
            yield bench
    finally:
        redis.remove()


async def measure(case: str, arguments: argparse.Namespace) -> Measured:
    seconds = TTFT + TOKENS / SPEED
    rate = ENGINES * arguments.slots / 2 / seconds
    duration, settle = arguments.seconds, arguments.settle
    async with started(case, arguments.slots) as bench:
        rounds, learning = [], None
        total = arguments.rounds * (duration + settle + 30) + 60
        await bench.begin(lines_of(int(4 * rate * total), secrets.token_hex(4)))
        for _ in range(arguments.rounds):
            await bench.change("pause")
            await asyncio.sleep(PAUSES_WITHIN)
            alone = await bench.people(arguments, rate, duration, popular=False)
            await bench.change("resume")
            settling = await bench.people(arguments, rate, settle, popular=False)
            learning = learning or settling
            before, started_at = await bench.completed(), time.perf_counter()
            beside = await bench.people(arguments, rate, duration, popular=False)
            lines = (await bench.completed() - before) / (time.perf_counter() - started_at)
            rounds.append(Round(alone, beside, lines))
        assert learning is not None, "there is a round"
        return Measured(case, learning, rounds)


async def measure_hits(arguments: argparse.Namespace) -> Measured:
    lines = lines_of(HIT_LINES, secrets.token_hex(4))
    async with started("hits", arguments.slots) as bench:
        learning = await bench.people(arguments, HIT_RATE, 10, popular=True)
        await bench.begin(lines)
        await _until(bench, HIT_LINES)
        for engine in bench.engines:
            await engine.stop()
        await asyncio.sleep(5)  # the router finds them down
        rounds = []
        for _ in range(arguments.rounds):
            alone = await bench.people(arguments, HIT_RATE, arguments.seconds, popular=True)
            await bench.begin(lines)
            await asyncio.sleep(2)  # the file is checked
            started_at = time.perf_counter()
            ending = asyncio.create_task(_until(bench, HIT_LINES))
            beside = await bench.people(arguments, HIT_RATE, arguments.seconds, popular=True)
            await ending
            rounds.append(Round(alone, beside, HIT_LINES / (time.perf_counter() - started_at)))
        return Measured("hits", learning, rounds)


async def _until(bench: Bench, lines: int) -> None:
    for _ in range(_MAX_LOOKS):
        if await bench.completed() >= lines:
            return
        await asyncio.sleep(_LOOK_INTERVAL)
    raise TimeoutError("the batch does not end")


def first_of(results: Sequence[LoadResults]) -> LatencyHistogram:
    merged = LatencyHistogram()
    for result in results:
        merged.include(result.all_times.first)
    return merged


def table_of(measured: Sequence[Measured]) -> Table:
    """Milliseconds."""
    table = Table("case", "", "people", "p50", "p90", "p99", "lines/s", box=box.SIMPLE_HEAD)
    for column in table.columns[2:]:
        column.justify = "right"

    def add(case: str, what: str, results: Sequence[LoadResults], lines: str = "") -> None:
        first = first_of(results)
        shares = [f"{1000 * first.percentile(share):,.1f}" for share in (0.5, 0.9, 0.99)]
        table.add_row(case, what, f"{first.count:,}", *shares, lines)

    for case, learning, rounds in measured:
        if case != "hits":
            add(case, "first seconds of the batch", [learning])
        for number, each in enumerate(rounds, 1):
            add(case, f"round {number}, alone", [each.alone])
            add(case, f"round {number}, beside the batch", [each.beside], f"{each.lines:,.1f}")
        add(case, "all rounds, alone", [each.alone for each in rounds])
        add(case, "all rounds, beside", [each.beside for each in rounds])
    return table


async def run(arguments: argparse.Namespace, console: Console) -> int:
    measured = [
        await (measure_hits(arguments) if case == "hits" else measure(case, arguments))
        for case in arguments.cases.split(",")
    ]
    console.print(table_of(measured))
    results = [result for each in measured for pair in each.rounds for result in (pair.alone, pair.beside)]
    doubts = {doubt for result in results for doubt in result.doubts}
    failed = sum(result.failed for result in results)
    for doubt in sorted(doubts):
        console.print(f"The figures are not valid: {doubt}", style="red")
    if failed:
        console.print(f"{failed} requests failed.", style="red")
    if arguments.json:
        figures = [
            {"case": each.case, "rounds": [
                {"alone": pair.alone.summary(), "beside": pair.beside.summary(), "lines": pair.lines}
                for pair in each.rounds
            ]}
            for each in measured
        ]  # fmt: skip
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if failed or doubts else 0


def _cases(text: str) -> str:
    if unknown := set(text.split(",")) - set(CASES):
        raise argparse.ArgumentTypeError(f"unknown case {min(unknown)!r}")
    return text


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.batch_latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--rounds", type=count, default=3, help="default: %(default)s")
    add("--seconds", type=positive, default=30.0, help="of each half of a round (default: %(default)s)")
    add("--settle", type=positive, default=30.0, help="before each second half (default: %(default)s)")
    add("--slots", type=count, default=32, help="of each engine (default: %(default)s)")
    add("--seed", type=count, default=1, help="of the arrivals (default: %(default)s)")
    add("--cases", type=_cases, default=",".join(CASES), help="default: %(default)s")
    add("--json", type=output_file, metavar="FILE", help="write the figures there")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    return uvloop.run(run(parser().parse_args(argv), Console(width=None if sys.stdout.isatty() else 110)))


if __name__ == "__main__":
    sys.exit(main())
