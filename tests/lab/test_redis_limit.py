"""lab/redis_limit.py: each part still runs, with numbers that take seconds, and measures what it says."""

import json
from pathlib import Path
from typing import Any

from tests.support.benchmark_process import run_benchmark


async def rows_of(part: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    """The results of a part of the benchmark."""
    results = folder / "results.json"
    pace = ("--idle", "0.5", "--settling", "0.1")
    code, output = await run_benchmark("lab.redis_limit", "--part", part, "--json", str(results), *pace, *options)
    assert code == 0, output
    rows: list[dict[str, Any]] = json.loads(results.read_text())[part]
    assert f"\n{part}\n\n| " in output
    return rows


async def test_a_hit_is_one_command(tmp_path: Path) -> None:
    (hit,) = await rows_of("hits", tmp_path, "--requests", "400", "--connections", "4", "--routers", "1")
    assert round(hit["calls"]["hmget"], 1) == 1.0
    assert hit["cpu_us"] > 0


async def test_a_miss_is_looked_up_claimed_written_and_released(tmp_path: Path) -> None:
    (miss,) = await rows_of("misses", tmp_path, "--requests", "200", "--connections", "4", "--routers", "1")
    # Two scripts: one writes the entry, the other releases the claim.
    assert (round(miss["calls"]["hmget"]), round(miss["calls"]["hset"]), round(miss["calls"]["eval"])) == (1, 1, 2)


async def test_a_follower_reads_what_the_leader_writes(tmp_path: Path) -> None:
    single, follower = await rows_of("followers", tmp_path, "--streams", "4", "--connections", "4")
    assert single["calls"].get("xadd", 0) < 0.5
    assert follower["calls"]["xadd"] > 5
    assert follower["calls"]["xrange"] > 5
    assert follower["cpu_us"] > single["cpu_us"]


async def test_recorded_commands_of_a_router_are_sent_again(tmp_path: Path) -> None:
    rows = await rows_of(
        "saturation", tmp_path, "--batches", "2", "--seconds", "0.3", "--clients", "2", "--routers", "1"
    )
    hit, miss = rows
    assert round(hit["commands"]) == 1
    assert miss["phases"] >= 3
    # Each request has a key of its own: if the entry were there, nothing would be claimed.
    assert miss["calls"]["hset"] == 1
    assert 0 < hit["core_share"] <= 1.1


async def test_each_primary_of_a_cluster_has_a_share(tmp_path: Path) -> None:
    options = ("--servers", "3 primaries", "--requests", "200", "--connections", "4")
    hit, miss = await rows_of("cluster", tmp_path, *options)
    assert len(hit["cpu_shares"]) == len(miss["cpu_shares"]) == 3
    # 200 keys: each primary has between a fifth and a half of them.
    lookups = [primary["calls"]["hmget"] for primary in hit["primaries"]]
    assert round(sum(lookups), 1) == 1.0
    assert 0.15 < min(lookups) < max(lookups) < 0.55


async def test_a_killed_master_is_replaced_and_no_request_fails(tmp_path: Path) -> None:
    (row,) = await rows_of(
        "failover", tmp_path, "--deployment", "sentinel", "--fault", "kill",
        "--rate", "40", "--before", "1", "--after", "8", "--detection", "1000",
    )  # fmt: skip
    assert row["failed_over"]
    assert row["failed"] == 0
    assert 0 < row["bypassed"] < 320
    assert row["cache_back_s"] > 1.0
    assert {second["second"] for second in row["timeline"]} == set(range(-1, 8))


async def test_the_memory_of_entries_is_that_of_each_and_of_the_tables(tmp_path: Path) -> None:
    (row,) = await rows_of("memory", tmp_path, "--entries", "2000", "--kind", "chat, 60 tokens")
    assert row["entry_bytes"] < row["used_per_entry"] < 1.5 * row["entry_bytes"]
    assert row["load_cpu_s"] > 0
    assert row["hit_counts"] > 50_000
