"""The load tools of benchmarks/ on real routers: that they run, and count what happens. No figure is checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.benchmark_process import run_benchmark
from tests.support.router_server import RouterServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def report(folder: Path, name: str, *options: str) -> Any:
    """Runs a tool and reads its JSON; 1 is the exit code of a generator that was late on a busy machine."""
    file = folder / "report.json"
    code, output = await run_benchmark(f"benchmarks.{name}", *options, "--json", str(file))
    assert code in (0, 1), output
    return json.loads(file.read_text())


async def test_an_open_loop_counts_hits_misses_and_followers(router: RouterServer, tmp_path: Path) -> None:
    load = ["--url", router.url, "--rate", "60", "--prompts", "5", "--name", "sea"]
    # Its responses are stored when it has ended; within a second, a busy engine may not give any.
    await report(tmp_path, "open_loop", *load, "--duration", "200ms")
    mix = ["--new", "0.3", "--followers", "0.3", "--stream-share", "0.7"]
    figures = await report(tmp_path, "open_loop", *load, "--duration", "1s", *mix)
    assert figures["failed"] == 0, figures["errors"]
    assert figures["completed"] == figures["sent"] == sum(figures["cache"].values())
    assert set(figures["cache"]) <= {"HIT", "MISS", "COALESCED"}
    assert {"HIT", "MISS"} <= set(figures["cache"])
    assert figures["first_event"]["MISS"]["p99_ms"] <= figures["last_byte"]["MISS"]["max_ms"] * 1.01
    assert "api_key" not in figures["plan"]


async def test_an_open_loop_takes_its_key_from_the_environment_and_never_shows_it(
    router: RouterServer, tmp_path: Path
) -> None:
    options = ["--url", router.url, "--rate", "20", "--duration", "200ms", "--json", str(tmp_path / "report.json")]
    _, output = await run_benchmark("benchmarks.open_loop", *options, OPENAI_API_KEY="sk-hidden")
    assert "completed" in output
    assert "sk-hidden" not in output + (tmp_path / "report.json").read_text()


@pytest.mark.parametrize(
    "options", [["--ramp", "5"], ["--duration", "5"], ["--followers", "0.8", "--new", "0.8"], ["--prompts", "0"]]
)
async def test_wrong_use_of_the_open_loop_is_explained(router: RouterServer, options: list[str]) -> None:
    code, output = await run_benchmark("benchmarks.open_loop", "--url", router.url, *options)
    assert code == 2
    assert output.startswith("open_loop: ")
    assert "Traceback" not in output


async def test_the_added_latency_is_measured_by_cache_status(tmp_path: Path) -> None:
    figures = await report(tmp_path, "added_latency", "--rounds", "1", "--seconds", "1", "--max-tokens", "4")
    assert len(figures["rounds"]) == 1
    assert "MISS first p99" in figures["added_seconds"]
    assert all(each["router"]["failed"] == each["direct"]["failed"] == 0 for each in figures["rounds"])
    assert set(figures["rounds"][0]["direct"]["cache"]) == {"(none)"}


async def test_a_ramp_reaches_its_streams_and_reads_the_router(tmp_path: Path) -> None:
    options = ["--streams", "20", "--ramp", "0.5", "--hold", "4", "--events", "10", "--warm-up", "0.2", "--direct"]
    figures = await report(tmp_path, "ramp", *options)
    assert (figures["router"]["failed"], figures["direct"]["failed"]) == (0, 0)
    assert figures["router"]["in_flight_at_most"] == 20
    assert figures["router"]["router"]["descriptors"] > 40
    assert figures["router"]["event_gap"]["count"] > 0


async def test_an_open_loop_without_a_server_names_its_address() -> None:
    code, output = await run_benchmark("benchmarks.open_loop", "--url", "http://127.0.0.1:1")
    assert code == 2
    assert output.startswith("open_loop: http://127.0.0.1:1: ")
