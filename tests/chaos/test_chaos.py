"""Routers, engines and Redis are killed and frozen under load; `python -m tests.chaos` does it for longer."""

from pathlib import Path

from havoc import plan
from run import run

SEED = 1
SECONDS = 15


async def test_every_request_ends_in_its_own_answer_or_in_an_error_whoever_is_killed(tmp_path: Path) -> None:
    report = await run(SECONDS, SEED, tmp_path)
    assert report.defects == [], "\n".join(report.lines())
    # It has been what it is called.
    assert report.endings["complete"] > 100
    assert report.entries > 0
    assert {"HIT", "MISS", "COALESCED", "BYPASS"} <= report.cache.keys()
    assert len(report.deeds) > 10


def test_the_same_seed_does_the_same_deeds_and_a_longer_time_only_adds_to_them() -> None:
    assert [deed for deed in plan(7, 60) if deed.at < 20] == plan(7, 20) != plan(8, 20)
