"""Which replica a router chooses, and what that costs: prefix cache hits and times to the first token.

    .venv/bin/python -m benchmarks.routing [--workloads chats-20,rag] [--seeds 1,2,3] [--json FILE] [--plot FILE.png]
    .venv/bin/python -m benchmarks.routing --workers 2 --routers 2 --record-delay 50
    .venv/bin/python -m benchmarks.routing --trace conversation_trace.jsonl

Replicas are models of vLLM: its scheduler with chunked prefill, a bounded pool of KV blocks, and a time for each step
(`model.py`). They run in virtual time. The router is real: `roundhouse serve` with one `[[engine]]` whose `urls` are
the ports of the replicas. The benchmark starts it, and a Redis; every request goes through it over HTTP.
The references see the replicas themselves and need no router: random, round robin, the least requests in flight, and an
oracle, which knows every block and every queue.

Nothing of the router's own CPU time is measured: virtual time stands still while a request is in the router. Virtual
time is never faster than the wall clock, so a run with a router takes as long as it simulates: one to three minutes.
A machine that is busy makes it longer, and delays the router's probes and what its processes send each other.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.options import at_least_zero, count, counts, input_file, output_file, positive
from benchmarks.routing import plot
from benchmarks.routing.references import REFERENCES
from benchmarks.routing.report import Figures, change_table, figures, table
from benchmarks.routing.routed import Routed
from benchmarks.routing.router_processes import Deployment
from benchmarks.routing.simulation import Policy, Simulation
from benchmarks.routing.trace import read_trace
from benchmarks.routing.workloads import REPLICAS, WORKLOADS, Change, Workload


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Several of these names, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = [part for part in text.split(",") if part]
        if unknown := set(chosen).difference(known):
            raise ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
        return chosen

    return parse


def slow_replica(text: str) -> tuple[int, float]:
    """`1:2.0`: the first replica takes twice as long."""
    number, _, factor = text.partition(":")
    index = count(number) - 1
    if index >= REPLICAS:
        raise ArgumentTypeError(f"{text!r} is none of {REPLICAS} replicas")
    return index, positive(factor)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.routing", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--workloads", type=names([*WORKLOADS, "trace"]), help=f"of {', '.join(WORKLOADS)}, trace; all by default")
    add("--references", type=names(list(REFERENCES)), default=list(REFERENCES), help="all by default; '' is none")
    add("--seeds", type=counts, default=[1], help="such as 1,2,3: the tables have medians")
    add("--no-router", action="store_true", help="only the references")
    add("--workers", type=count, default=1, help="of each router")
    add("--routers", type=count, default=1, help="processes that share the Redis, and get requests at random")
    add("--no-redis", action="store_true", help="the routers have no Redis")
    add("--record-delay", type=at_least_zero, default=0.0, metavar="MS", help="from router to router through Redis")
    add("--stated-pool", type=positive, default=1.0, metavar="FACTOR", help="engines state a pool of another size")
    add("--one-table", action="store_true", help="the router takes replicas with different drafts for equal ones")
    add("--slow", type=slow_replica, action="append", default=[], metavar="REPLICA:FACTOR", help="such as 1:2.0")
    add("--trace", type=input_file, metavar="FILE", help="in Mooncake's format, JSON lines, .gz or not")
    add("--json", type=output_file, metavar="FILE", help="figures of each run")
    add("--plot", type=output_file, metavar="FILE.png", help="hit share over time; needs matplotlib")
    options = parser.parse_args()
    if options.workloads is None:
        options.workloads = [*WORKLOADS, *(["trace"] if options.trace else [])]
    if "trace" in options.workloads and options.trace is None:
        parser.error("the workload trace needs --trace FILE")
    if options.record_delay and options.no_redis:
        parser.error("--record-delay needs a Redis")
    if options.plot and not plot.is_available():
        parser.error("--plot needs matplotlib: .venv/bin/pip install matplotlib")
    return options


async def benchmark(options: argparse.Namespace) -> tuple[list[Figures], dict[str, Sequence[Change]]]:
    """The figures of each run, and the changes of the replicas in each workload."""
    deployment = Deployment(
        workers=options.workers,
        routers=options.routers,
        has_redis=not options.no_redis,
        record_delay=options.record_delay / 1000,
        stated=options.stated_pool,
        is_one_table=options.one_table,
    )
    policies: list[Callable[[], Policy]] = [REFERENCES[name] for name in options.references]
    if not options.no_router:
        policies.append(partial(Routed, deployment))
    results, changes = [], {}
    for name in options.workloads:
        for policy in policies:
            for seed in options.seeds:
                workload = make_workload(name, seed, options)
                changes[name] = workload.changes
                results.append(await _measure(workload, policy(), seed, dict(options.slow)))
    return results, changes


def make_workload(name: str, seed: int, options: argparse.Namespace) -> Workload:
    return read_trace(options.trace, seed) if name == "trace" else WORKLOADS[name](seed)


async def _measure(workload: Workload, policy: Policy, seed: int, slow: dict[int, float]) -> Figures:
    started = time.monotonic()
    result = figures(await Simulation(workload, policy, slow).run(), seed)
    note = f"{workload.name}, {policy.name}, seed {seed}: {time.monotonic() - started:.0f} s"
    if isinstance(policy, Routed):
        note += f", virtual time stood still for {policy.seconds_behind:.0f} s"
    print(note, file=sys.stderr, flush=True)
    return result


def main() -> None:
    options = parse_options()
    results, changes = asyncio.run(benchmark(options))
    print(table(results))
    if around := change_table(results):
        print(f"\n{around}")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(one) for one in results], indent=1) + "\n")
    if options.plot:
        plot.write_plot(options.plot, results, changes)


if __name__ == "__main__":
    main()
