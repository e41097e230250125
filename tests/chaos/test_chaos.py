"""Routers, engines and Redis are killed and frozen under load; `python -m tests.chaos` does it for longer."""

from pathlib import Path

import pytest

from tests.chaos.faults import connection_fault, plan_faults
from tests.chaos.run import ChaosReport, run_chaos

SEED = 5
PATIENCE = 3.0
"""Seconds after the end for which clients wait; at default timeouts, an engine may hang for up to 50 s."""


def no_defects(report: ChaosReport) -> bool:
    assert report.defects == [], "\n".join(report.lines())
    return True


async def test_every_request_gets_its_own_response_or_an_error_whatever_is_killed(tmp_path: Path) -> None:
    report = await run_chaos(10, SEED, tmp_path, client_timeout=PATIENCE)
    assert no_defects(report)
    assert report.endings["complete"] > 50
    assert report.entries > 0
    assert report.purges > 5
    assert {"HIT", "MISS", "COALESCED", "BYPASS"} <= report.cache.keys()
    assert len(report.fault_counts) > 5
    assert len(report.paths) > 5


def test_the_same_seed_gives_the_same_faults_and_a_longer_run_only_adds_to_them() -> None:
    assert [fault for fault in plan_faults(7, 60) if fault.start < 30] == plan_faults(7, 30) != plan_faults(8, 30)
    assert [connection_fault(fault) for fault in plan_faults(7, 60)] == [
        connection_fault(fault) for fault in plan_faults(7, 60)
    ]


@pytest.mark.parametrize("victim", ["llama-chat", "embed", "router-0", "router-1", "redis", "proxy"])
def test_every_component_is_a_target_of_some_fault(victim: str) -> None:
    assert any(fault.target == victim for fault in plan_faults(SEED, 60))
