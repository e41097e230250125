"""lab/batches: each part runs with few lines, and measures what it says."""

import json
from pathlib import Path
from typing import Any

from tests.support.benchmark_process import run_benchmark


async def rows_of(part: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    results = folder / "results.json"
    code, output = await run_benchmark("lab.batches", part, "--json", str(results), *options)
    assert code == 0, output
    rows: list[dict[str, Any]] = json.loads(results.read_text())
    assert f"| {' | '.join(rows[0])} |" in output
    return rows


async def test_each_line_has_one_result_though_engines_and_redis_are_killed(tmp_path: Path) -> None:
    # A router that is killed would hold its lines for half a minute.
    faults = ("--fault", "engine", "--fault", "redis", "--down", "0.5")
    first, second = await rows_of("kill", tmp_path, "--lines", "400", *faults)
    assert first["kills"] == 4
    for row in (first, second):
        assert (row["status"], row["answered"] + row["failed"]) == ("completed", 400)
        assert row["missing"] == row["more than once"] == 0
    # What was in flight as Redis died is not stored; the second run generates nothing else.
    assert second["generations"] + second["from the cache"] == 400
    assert second["generations"] < 100


async def test_the_memory_of_each_phase_is_measured(tmp_path: Path) -> None:
    rows = await rows_of("big", tmp_path, "--megabytes", "4", "--lines", "40")
    assert [row["phase"].partition(" ")[0] for row in rows] == ["idle", "upload", "check", "run", "download"]
    assert all(row["peak, MB"] > 20 for row in rows)


async def test_a_batch_finds_more_in_prefix_caches_than_requests_in_the_order_of_the_file(tmp_path: Path) -> None:
    # The engines hold about two thirds of the prompts.
    options = ("--lines", "400", "--prompts", "100", "--words", "500", "--kv-blocks", "1100")
    requests, batch = await rows_of("order", tmp_path, *options)
    assert requests["prompt tokens"] == batch["prompt tokens"]
    assert batch["in prefix caches, %"] > requests["in prefix caches, %"]
