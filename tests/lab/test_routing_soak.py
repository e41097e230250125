"""A short run of the soak of what routers remember of prefix caches."""

import asyncio
from unittest.mock import patch

from lab.routing_soak import COLUMNS, Soak


def test_what_is_remembered_stays_within_the_caches_while_replicas_and_processes_are_replaced() -> None:
    soak = Soak(rate=1.0)
    with patch.object(asyncio, "get_running_loop", lambda: soak.timers):
        soak.timers.run_until(1.5 * 7200)
    row = dict(zip(COLUMNS, soak.row(), strict=True))
    assert soak.requests > 5000
    assert 0.5 < float(row["fullest index"]) <= 1.0
    assert int(row["most pending"]) < 10
    assert int(row["of other processes"]) < 50
