"""Asks the simulation: what a deployment for a number of users needs, and what saturates first.

    .venv/bin/python -m lab.scale_simulation      # all questions, about two minutes
    .venv/bin/python -m lab.scale_simulation --users 50000 --hit 0.5

The costs are the measured ones of lab/scale/measured_costs.json (lab/scale_costs.py); what users do and
how fast an engine is are assumptions, see lab/scale/scenario.py and speeds.py. Time is virtual and a seed
determines everything, so the machine does not matter. lab/scale_validation.py compares with real runs.

The questions: `growth` (1, 10, 100 and 1,000 times the users of one process), `hits` (a million users with other shares
of hits), `reduction` (whether simulating a part gives the answer of the whole).
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.options import count, input_file, output_file, positive, share
from lab.scale.costs import Costs, load_costs
from lab.scale.fan_out import Deployment, fan_out
from lab.scale.scenario import Answer, Assumptions, answer, most_users, size_for

GROWTH: Final = (1_000, 10_000, 100_000, 1_000_000)
HITS: Final = (0.1, 0.3, 0.6)
REDUCTIONS: Final = (40, 20, 10, 5)
SECONDS: Final = 20.0
ENGINES_OF_A_LAUNCHER: Final = 8
MOST_USERS: Final = 100_000
"""Users that are simulated one by one; of more, only a part."""


def reduction_for(users: int) -> int:
    return max(1, users // MOST_USERS)


def ask(assumptions: Assumptions, costs: Costs, *, seconds: float, reduction: int | None = None) -> Answer:
    size = size_for(assumptions, costs)
    chosen = reduction_for(assumptions.users) if reduction is None else reduction
    return answer(assumptions, size, costs, reduction=chosen, seconds=seconds)


def row(assumptions: Assumptions, costs: Costs, result: Answer) -> dict[str, Any]:
    """What the tables show."""
    size, summary, load = result.size, result.summary, result.load
    stored = result.full_rate * summary.miss
    launchers = -(-size.engines // ENGINES_OF_A_LAUNCHER)
    traffic = fan_out(Deployment(size.processes, size.engines, launchers, size.shards), writes=stored)
    return {
        "users": assumptions.users,
        "reduction": result.reduction,
        "requests_per_s": round(result.full_rate),
        "hit": round(summary.hit, 3),
        "local_hit": round(summary.local, 3),
        "follower": round(summary.follower, 4),
        "refused": round(summary.refused, 4),
        "processes": size.processes,
        "shards": size.shards,
        "engines": size.engines,
        "process_utilization": round(load.process_mean, 2),
        "process_background": round(load.process_background, 2),
        "shard_utilization": round(load.shard_max, 2),
        "shard_background": round(load.shard_background, 2),
        "engine_running": round(load.engine_running_mean),
        "engine_running_max": round(load.engine_running_max),
        "tokens_per_s": round(load.tokens_per_s * result.reduction),
        "first_p50_ms": round(summary.first_p50 * 1000),
        "first_p99_ms": round(summary.first_p99 * 1000),
        "first_to_saturate": result.first_to_saturate,
        "most_users_of_one_redis": most_users(assumptions, costs),
        "probes_per_engine_per_s": round(traffic.probes_per_engine),
        "pushes_per_s": round(traffic.pushes),
        "announcement_mb_per_s": round(traffic.announcement_bytes / 1e6, 1),
        "redis_connections": traffic.redis_connections,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: a line for each figure, a column for each row."""
    yield "| | " + " | ".join(str(number + 1) for number in range(len(rows))) + " |"
    yield "| --- |" + " --- |" * len(rows)
    for name in rows[0]:
        values = (each[name] for each in rows)
        shown = (f"{value:,}" if isinstance(value, int) else str(value) for value in values)
        yield f"| {name.replace('_', ' ')} | " + " | ".join(shown) + " |"


def questions(arguments: argparse.Namespace, costs: Costs) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    seconds = arguments.seconds
    if arguments.users is not None:
        assumptions = Assumptions(users=arguments.users, hit=arguments.hit)
        yield "users", [row(assumptions, costs, ask(assumptions, costs, seconds=seconds))]
        return
    all_ = [Assumptions(users=users) for users in GROWTH]
    yield "growth", [row(each, costs, ask(each, costs, seconds=seconds)) for each in all_]
    all_ = [Assumptions(hit=hit) for hit in HITS]
    yield "hits", [row(each, costs, ask(each, costs, seconds=seconds)) for each in all_]
    million = Assumptions()
    parts = [ask(million, costs, seconds=seconds, reduction=reduction) for reduction in REDUCTIONS]
    yield "reduction", [row(million, costs, each) for each in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=count, help="one answer for this number of users, in place of all questions")
    parser.add_argument("--hit", type=share, default=0.3, help="with --users: the share of hits (default: %(default)s)")
    parser.add_argument("--seconds", type=positive, default=SECONDS, help="of virtual time that is counted")
    parser.add_argument("--costs", type=input_file, help="other costs than the committed ones")
    parser.add_argument("--output", type=output_file, help="write the figures there as JSON")
    arguments = parser.parse_args()
    costs = load_costs(arguments.costs) if arguments.costs else load_costs()
    if arguments.users is not None:
        try:
            size_for(Assumptions(users=arguments.users, hit=arguments.hit), costs)
        except ValueError as error:
            parser.error(f"--users: too many for one Redis: {error}")
    answers = {}
    for name, rows in questions(arguments, costs):
        answers[name] = rows
        print(f"\n{name}\n")
        print("\n".join(table(rows)), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(answers, indent=2) + "\n")


if __name__ == "__main__":
    main()
