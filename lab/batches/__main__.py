"""Batches at their limits: each line exactly once, a large file in bounded memory, prompts in prefix caches.

    .venv/bin/python -m lab.batches kill --lines 20000 --json kill.json

Routers are `roundhouse serve` processes with a redis-server (append-only file) and simulated engines.

- kill: a file over two routers and two engines, while both routers, both engines and, twice, Redis are killed
  (SIGKILL) and started again, at equal shares of the lines. Then the same file again. It counts the results of each
  line, and the generations that engines began: in the second run, those of lines that were in flight as Redis died.
  Exit code 1 if a line has none or several results.
- big: the peak of a router's resident memory (Linux) in each phase of a file of 1 GB. It needs 2.5 GB for temporary
  files.
- order: the share of prompt tokens that two engines find in their prefix caches, for requests in the order of a file
  and for a batch of it.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.options import at_least_zero, count, output_file
from lab.batches import big, kill, order


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.batches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")
    parts = parser.add_subparsers(dest="part", required=True)
    killing = parts.add_parser("kill", parents=[output])
    killing.add_argument("--lines", type=count, default=20_000)
    killing.add_argument("--fault", action="append", choices=kill.FAULTS, help="what is killed; may be repeated")
    killing.add_argument("--down", type=at_least_zero, default=4.0, help="seconds until it is started again")
    large = parts.add_parser("big", parents=[output])
    large.add_argument("--megabytes", type=count, default=1000)
    large.add_argument("--lines", type=count, default=10_000)
    ordered = parts.add_parser("order", parents=[output])
    ordered.add_argument("--lines", type=count, default=2000)
    ordered.add_argument("--prompts", type=count, default=200, help="system prompts")
    ordered.add_argument("--words", type=count, default=1000, help="of each system prompt")
    ordered.add_argument("--kv-blocks", type=count, default=4096, help="of each engine, for 16 tokens each")
    return parser.parse_args()


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    match options.part:
        case "kill":
            return await kill.run(kill.KillPlan(options.lines, options.fault or kill.FAULTS, options.down))
        case "big":
            return await big.run(big.BigPlan(options.megabytes, options.lines))
        case _:
            plan = order.OrderPlan(options.lines, options.prompts, options.words, options.kv_blocks)
            return await order.run(plan)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    for cells in lines:
        print(f"| {' | '.join(cells)} |")


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> int:
    options = arguments()
    rows = asyncio.run(run(options))
    print_table(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if options.part == "kill" and not kill.is_right(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
