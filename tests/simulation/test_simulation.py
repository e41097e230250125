"""Thousands of histories, each from a seed; `make simulate` runs more of them, or prints one."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.support.examples import EXAMPLES
from tests.support.paths import ROOT

# CI runs both: not the same seeds twice.
FIRST: Final = 0 if os.environ.get("ROUNDHOUSE_TESTS_COMPILED") else 1000
SEEDS: Final = 7 * EXAMPLES if os.environ.get("ROUNDHOUSE_TESTS_COMPILED") else 5 * EXAMPLES
SEEDS_OF_A_MUTANT: Final = 400


def simulate(*words: str, hashes: str = "random") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hashes},
    )  # fmt: skip


def reports(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_order_of_events_violates_an_invariant() -> None:
    jobs = len(os.sched_getaffinity(0))
    *wrong, summary = reports(simulate("--seeds", f"{SEEDS}", "--first", f"{FIRST}", "--jobs", f"{jobs}", "--json"))
    assert {one["seed"]: one["wrong"] for one in wrong} == {}, "make simulate SEED=… shows what happened"
    assert summary["seeds"] == SEEDS
    # The histories cover all kinds of responses, and most of them have faults.
    counts = summary["counts"]
    assert min(counts[f"cache {how}"] for how in ("HIT", "MISS", "COALESCED", "BYPASS")) > SEEDS // 10
    assert min(counts[how] for how in ("purges", "faults", "ended left")) > SEEDS // 10
    if SEEDS > 100:  # of fewer, it is chance
        assert min(counts[f"continuations by {way}"] for way in ("ids", "text")) > SEEDS // 40


def test_a_seed_gives_the_same_history_in_any_process_after_any_other_runs() -> None:
    forwards = simulate("--seeds", "12", "--digests", hashes="1")
    backwards = simulate("--seeds", "12", "--first", "11", "--step", "-1", "--digests", hashes="2")
    lines = forwards.stdout.splitlines()
    assert len(set(lines)) == 12, forwards.stderr
    assert lines == backwards.stdout.splitlines()[::-1]


def test_a_seed_is_printed_with_its_events_and_their_times() -> None:
    output = simulate("--seed", "3").stdout.splitlines()
    assert any(" redis < " in line for line in output)
    assert any(" engine: generation 1 " in line for line in output)
    assert output[-1].startswith("seed 3: ")


def is_compiled() -> bool:
    found = importlib.util.find_spec("router.flow.sharing.coalescer")
    return found is not None and found.origin is not None and not found.origin.endswith(".py")


@pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be changed")
@pytest.mark.parametrize(
    ("mutant", "kinds", "first"),
    [
        ("same-ids", "reload,kill", 0),
        ("written-once", "stall", 0),
        ("unmarked-entries", "partition", 0),
        ("unpurged-late-writes", "partition", 0),
        ("silent-leaders", "slow", 200),
        ("joined-while-deaf", "deaf", 140),
        ("unnoticed-loss", "empty", 0),
        ("repeated-seam", "stream", 0),
        ("partial-event", "stream", 40),
        ("same-engine", "stream", 0),
        ("any-revision", "stream,engine", 0),
        ("whole-limit", "stream", 0),
        ("five-losses", "poison", 0),
        ("forgotten-losses", "poison,reload", 0),
    ],
)
def test_a_removed_fix_is_detected_within_some_hundred_histories(mutant: str, kinds: str, first: int) -> None:
    """The defects 1 to 6 that a review had found, and what a continued stream must not have.

    `first`: a seed shortly before one that has detected it, to save time. It need not stay near.
    """
    seeds = ("--first", f"{first}", "--seeds", f"{SEEDS_OF_A_MUTANT}")
    found = reports(simulate(*seeds, "--kinds", kinds, "--mutant", mutant, "--one", "--json"))
    assert "seed" in found[0], "no history detects it"
    with_the_fix = simulate("--seed", str(found[0]["seed"]), "--kinds", kinds)
    assert with_the_fix.returncode == 0, with_the_fix.stdout
