"""The scripts behind docs/scaling.md run: each in seconds, with few requests."""

import json
from pathlib import Path

import pytest

from tests.support.benchmark_process import run_benchmark


async def output_of(name: str, *options: str) -> str:
    code, output = await run_benchmark(f"lab.{name}", *options)
    assert code == 0, output
    return output


async def test_the_simulation_answers_for_a_number_of_users(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    shown = await output_of("scale_simulation", "--users=2000", "--seconds=3", f"--output={answers}")
    (row,) = json.loads(answers.read_text())["users"]
    assert row["processes"] == row["shards"] == 1
    assert 0.1 < row["hit"] < 0.5
    assert "| first p99 ms |" in shown


async def test_the_validation_runs_real_routers_beside_the_simulation(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    await output_of("scale_validation", "--seconds=2", "--only=half", f"--output={rows}")
    (row,) = json.loads(rows.read_text())
    assert row["real"]["requests"] == row["simulated"]["requests"] > 5
    assert row["real"]["miss"] == pytest.approx(row["simulated"]["miss"], abs=0.15)


async def test_the_costs_of_stored_entries_are_measured() -> None:
    costs = json.loads(await output_of("scale_costs", "--quick", "--only=invalidation"))
    assert set(costs["invalidation"]) == {"router_us", "redis_us"}
