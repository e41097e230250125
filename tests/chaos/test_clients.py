"""The clients notice requests that fail although nothing was away."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.clients import ChaosClients
from tests.chaos.oracle import ClientResponse
from tests.chaos.outages import OutageKind, Outages
from tests.chaos.test_oracle import ORIGIN, STORED, STREAM_REQUEST, events, generation_index, headers

LOST = {"error": {"message": "The router is gone.", "type": "t", "param": None, "code": "lost"}}
FRAME = b"data: %b\n\n" % json.dumps(LOST).encode()


def clients() -> tuple[ChaosClients, Any]:
    redis = SimpleNamespace(outages=Outages(), flush_times=[], may_have_lost=lambda *_: False)
    testbed: Any = SimpleNamespace(
        redis=redis,
        outages=[Outages(), Outages()],
        defects=[],
        routers=[None],
        fault_counts=Counter(),
        generations=generation_index(),
    )
    return ChaosClients(testbed, 1), testbed


def loss_defects(clients_: ChaosClients, reply: ClientResponse, started: float) -> list[str]:
    clients_._check(STREAM_REQUEST, reply, started)
    return clients_.stats.defects


LOST_STREAM = ClientResponse(200, headers("COALESCED"), events(STORED)[0] + FRAME, complete=True)


async def test_a_leader_lost_without_a_fault_is_reported() -> None:
    clients_, testbed = clients()
    started = asyncio.get_running_loop().time()
    with testbed.redis.outages.record("held"):  # for less than a lease
        assert len(loss_defects(clients_, LOST_STREAM, started)) == 1
    assert clients_.stats.endings == {"broken, lost": 1}


@pytest.mark.parametrize("kind", ["killed", "frozen", "stopped", "deaf"])
async def test_a_leader_lost_during_a_fault_of_its_router_or_of_redis_is_not_reported(kind: OutageKind) -> None:
    for of in ("router", "redis"):
        clients_, testbed = clients()
        started = asyncio.get_running_loop().time()
        with (testbed.outages[1] if of == "router" else testbed.redis.outages).record(kind):
            assert loss_defects(clients_, LOST_STREAM, started) == []


async def test_a_stream_cut_off_by_a_running_router_is_reported() -> None:
    clients_, testbed = clients()
    started = asyncio.get_running_loop().time()
    cut = ClientResponse(200, headers("MISS"), events(ORIGIN)[0], complete=False)
    assert len(loss_defects(clients_, cut, started)) == 1
    clients_, testbed = clients()
    with testbed.outages[0].record("killed"):
        assert loss_defects(clients_, cut, started) == []
