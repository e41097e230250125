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
from tests.chaos.test_oracle import KEPT, MINE, STREAMING, events, headers, noted

LOST = {"error": {"message": "The router is gone.", "type": "t", "param": None, "code": "lost"}}
FRAME = b"data: %b\n\n" % json.dumps(LOST).encode()


def clients() -> tuple[ChaosClients, Any]:
    redis = SimpleNamespace(outages=Outages(), flush_times=[], may_have_lost=lambda *_: False)
    house: Any = SimpleNamespace(
        redis=redis, outages=[Outages(), Outages()], defects=[], routers=[None], deeds=Counter(), generations=noted()
    )
    return ChaosClients(house, 1), house


def taken(judge: ChaosClients, reply: ClientResponse, began: float) -> list[str]:
    judge._check(STREAMING, reply, began)
    return judge.stats.defects


LOST_STREAM = ClientResponse(200, headers("COALESCED"), events(KEPT)[0] + FRAME, complete=True)


async def test_a_leader_lost_without_a_fault_is_reported() -> None:
    judge, house = clients()
    began = asyncio.get_running_loop().time()
    with house.redis.outages.record("held"):  # for less than a lease
        assert len(taken(judge, LOST_STREAM, began)) == 1
    assert judge.stats.endings == {"broken, lost": 1}


@pytest.mark.parametrize("kind", ["killed", "frozen", "stopped", "deaf"])
async def test_a_leader_lost_during_a_fault_of_its_router_or_of_redis_is_not_reported(kind: OutageKind) -> None:
    for of in ("router", "redis"):
        judge, house = clients()
        began = asyncio.get_running_loop().time()
        with (house.outages[1] if of == "router" else house.redis.outages).record(kind):
            assert taken(judge, LOST_STREAM, began) == []


async def test_a_stream_cut_off_by_a_running_router_is_reported() -> None:
    judge, house = clients()
    began = asyncio.get_running_loop().time()
    cut = ClientResponse(200, headers("MISS"), events(MINE)[0], complete=False)
    assert len(taken(judge, cut, began)) == 1
    judge, house = clients()
    with house.outages[0].record("killed"):
        assert taken(judge, cut, began) == []
