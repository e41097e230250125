"""The command line: `make simulate`, or `python -m tests.simulation` from the project's folder.

It prints each seed with violations and the trace of the first one. The exit status is 1 if there are any.
"""

import argparse
import gc
import hashlib
import json
import subprocess
import sys
from collections import Counter
from typing import Any

from tests.simulation import clock

_COLLECT_EVERY = 25  # seeds between two garbage collections


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Find orders of events in which the routers are wrong."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes that do it")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--kinds", default="", help="the kinds of faults, with commas; see simulation/plan.py")
    parser.add_argument("--mutant", help="take a mend out again; see simulation/mutants.py")
    parser.add_argument("--one", action="store_true", help="stop at the first seed of which something is wrong")
    parser.add_argument("--digests", action="store_true", help="only a hash of each seed's trace")
    parser.add_argument("--json", action="store_true", help="a line for each seed of which something is wrong")
    options = parser.parse_args()
    if options.seed is not None:
        return _show(options)
    if options.jobs > 1:
        return _in_parallel(options)
    _prepare(options.mutant)
    from tests.simulation.world import run_seed

    bad, counts = 0, Counter[str]()
    for number in range(options.seeds):
        report = run_seed(options.first + number * options.step, _kinds(options), traced=options.digests)
        if options.digests:
            digest = hashlib.sha256("\n".join([*report.trace, *report.wrong]).encode()).hexdigest()
            sys.stdout.write(f"{report.seed} {digest}\n")
            continue
        counts.update(report.counts)
        if report.wrong:
            bad += 1
            _print_result(options.json, {"seed": report.seed, "wrong": report.wrong})
            if options.one:
                return 1
        if number % _COLLECT_EVERY == 0:
            gc.collect()
    if not options.digests:
        _print_result(options.json, {"seeds": options.seeds, "bad": bad, "counts": counts})
    return 1 if bad else 0


def _prepare(mutant: str | None) -> None:
    clock.install()
    # After `install`: the import of the router binds the clock functions.
    from tests.simulation.world import prepare

    prepare(mutant)
    sys.unraisablehook = lambda _: None  # raised by garbage collection of killed processes' tasks
    gc.collect()
    gc.freeze()


def _show(options: argparse.Namespace) -> int:
    _prepare(options.mutant)
    from tests.simulation.world import run_seed

    report = run_seed(options.seed, _kinds(options), traced=True)
    lines = [*report.trace, *report.wrong, f"seed {options.seed}: {len(report.wrong)} wrong; {report.counts}"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.wrong else 0


def _kinds(options: argparse.Namespace) -> list[str]:
    return [kind for kind in options.kinds.split(",") if kind]


def _in_parallel(options: argparse.Namespace) -> int:
    """Distribute the seeds over processes and merge their results."""
    same = ["--kinds", options.kinds] + (["--mutant", options.mutant] if options.mutant else [])
    children = []
    for job in range(options.jobs):
        count = len(range(job, options.seeds, options.jobs))
        argv = ["--seeds", f"{count}", "--first", f"{options.first + job}", "--step", f"{options.jobs}", "--json"]
        argv = [sys.executable, "-m", "tests.simulation", *argv, *same]
        children.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
    results: list[Any] = []
    for child in children:
        out, _ = child.communicate()
        if child.returncode not in (0, 1):
            return child.returncode
        results += map(json.loads, out.splitlines())
    counts, seeds = Counter[str](), 0
    for result in results:
        if "counts" in result:
            counts.update(result["counts"])
            seeds += result["seeds"]
    wrong = sorted((result for result in results if "seed" in result), key=lambda result: int(result["seed"]))
    for result in wrong:
        _print_result(options.json, result)
    if wrong and not options.json:
        argv = [sys.executable, "-m", "tests.simulation", "--seed", str(wrong[0]["seed"]), *same]
        sys.stdout.flush()
        subprocess.run(argv, check=False)
    _print_result(options.json, {"seeds": seeds, "bad": len(wrong), "counts": counts})
    return 1 if wrong else 0


def _print_result(as_json: bool, what: dict[str, Any]) -> None:
    if as_json:
        sys.stdout.write(json.dumps(what) + "\n")
    elif "seed" in what:
        sys.stdout.write(f"seed {what['seed']}:\n" + "".join(f"    {line[:600]}\n" for line in what["wrong"][:4]))
    else:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(what["counts"].items()))
        sys.stdout.write(f"{what['seeds']} seeds, {what['bad']} with something wrong; {counts}\n")


if __name__ == "__main__":
    sys.exit(main())
