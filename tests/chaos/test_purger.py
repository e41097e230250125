"""The purger reports a response that was purged before its request."""

import asyncio
import time
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.generation_store import LoggedGeneration
from tests.chaos.outages import Outages
from tests.chaos.purger import PURGE_DELAY, CompletedPurge, Purger
from tests.chaos.workload import CACHE_DIRECTIVES, ClientRequest, RequestOrigin, WorkloadQuestion, expected_key

ORIGIN = RequestOrigin("globex", WorkloadQuestion(4), CACHE_DIRECTIVES["none"], 41)
REQUEST = ClientRequest(ORIGIN, router=0, stream=False, usage=False, leaves_after=None)
OLD = LoggedGeneration("a" * 12, "llama-chat", 10.0, replace(ORIGIN, serial=7))
KEY = {"key": expected_key("globex", WorkloadQuestion(4)).text}
DONE = CompletedPurge(KEY, since=11.0, ended=12.0)
LATER = 12.0 + PURGE_DELAY


class Redis:
    """Has lost everything that was written before `emptied`."""

    emptied = -inf

    def may_have_lost(self, since: float, until: float) -> bool:
        return min(since, until) <= self.emptied


def purger(*purges: CompletedPurge) -> tuple[Purger, Any]:
    testbed: Any = SimpleNamespace(redis=Redis(), outages=[Outages()], defects=[], routers=[None])
    made = Purger(testbed, 1)
    made._purges += purges
    return made, testbed


@pytest.mark.parametrize("cache", ["HIT", "STALE", "COALESCED"])
async def test_an_older_generation_after_a_purge_is_reported(cache: str) -> None:
    purger_, _ = purger(DONE)
    assert len(purger_.check_answer(REQUEST, OLD, cache, LATER)) == 1
    assert len(purger_.check_entry(OLD)) == 1


async def test_a_response_that_is_younger_or_not_covered_or_requested_at_once_is_valid() -> None:
    purger_, _ = purger(DONE)
    for generation in (
        OLD._replace(at=11.5),
        OLD._replace(origin=replace(ORIGIN, tenant="acme")),
        OLD._replace(origin=replace(ORIGIN, question=WorkloadQuestion(9))),
    ):
        assert purger_.check_answer(REQUEST, generation, "HIT", LATER) == purger_.check_entry(generation) == []
    assert purger_.check_answer(REQUEST, OLD, "HIT", LATER - 0.1) == []
    assert purger_.check_answer(REQUEST, OLD, "MISS", LATER) == []


@pytest.mark.parametrize(
    "scope", [{"all": True}, {"tenant": "globex"}, {"model": "llama"}, {"tenant": "globex", "model": "llama"}]
)
async def test_wider_purges_cover_the_response_too(scope: dict[str, Any]) -> None:
    purger_, _ = purger(DONE._replace(scope=scope))
    assert len(purger_.check_answer(REQUEST, OLD, "HIT", LATER)) == 1


async def test_an_emptied_redis_or_a_stopped_router_excuses_an_old_response() -> None:
    purger_, testbed = purger(DONE)
    testbed.redis.emptied = 11.5
    assert purger_.check_answer(REQUEST, OLD, "HIT", LATER) == purger_.check_entry(OLD) == []
    testbed.redis.emptied = -inf
    now = asyncio.get_running_loop().time()
    assert len(purger_.check_answer(REQUEST, OLD, "HIT", now)) == 1
    with testbed.outages[0].record("frozen"):
        assert purger_.check_answer(REQUEST, OLD, "HIT", now) == []


def test_the_engines_clock_is_that_of_the_event_loop() -> None:
    async def both() -> tuple[float, float]:
        return time.monotonic(), asyncio.get_running_loop().time()

    engine, loop = asyncio.run(both())
    assert abs(engine - loop) < 1
