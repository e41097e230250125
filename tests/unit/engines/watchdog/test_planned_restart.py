"""Drain, wait until idle, restart, resume: with a real Redis, and an engine whose state the test sets."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engines.process import StartError
from engines.watchdog import planned_restart
from engines.watchdog.drains import Drains
from engines.watchdog.planned_restart import Outcome, PlannedRestart
from router.net.redis.connect import open_client
from router.shared.engines.drains import drain_command
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Engine:
    """`counts` are the next numbers of its requests; the last one stays."""

    def __init__(
        self, client: Any, *counts: float | None, drain_timeout: float = 30.0, streams_go_on: bool = False
    ) -> None:
        self.drains = Drains(client)
        self.counts = list(counts)
        self.others_available = True
        self.drained_at_restart: frozenset[str] | None = None
        self.failure: Exception | None = None
        self.killed: bool | None = None
        self.restart = PlannedRestart(
            "e0", self.drains, request_count=self._request_count, restart=self._restart,
            others_available=self._others, drain_timeout=drain_timeout, poll_interval=0.001,
            streams_go_on=streams_go_on,
        )  # fmt: skip

    async def _request_count(self) -> float | None:
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]

    async def _restart(self, *, kill: bool = False) -> None:
        self.killed = kill
        self.drained_at_restart = await self.drains.drained()
        if self.failure is not None:
            raise self.failure

    async def _others(self) -> bool:
        return self.others_available


async def test_it_is_restarted_when_it_is_idle_and_resumed(client: Any, redis: Any) -> None:
    engine = Engine(client, 2, 0, 1, 0, 0, None, 0, 0, 0)
    assert await engine.restart.run(stalled=False) == Outcome("restarted")
    assert engine.killed is False
    assert engine.drained_at_restart == frozenset({"e0"})
    assert engine.counts == [0], "idle three times in a row"
    assert await engine.drains.drained() == frozenset()


async def test_it_stays_drained_if_it_was(client: Any, redis: Any) -> None:
    await client.execute_command(*drain_command("e0"))
    engine = Engine(client, 0)
    assert await engine.restart.run(stalled=False) == Outcome("restarted")
    assert await engine.drains.drained() == {"e0"}


async def test_it_is_resumed_and_not_restarted_if_it_does_not_become_idle(client: Any, redis: Any) -> None:
    engine = Engine(client, 1, drain_timeout=0.05)
    outcome = await engine.restart.run(stalled=False)
    assert outcome == Outcome("not restarted", "it did not become idle within 0.05 s")
    assert engine.drained_at_restart is None
    assert await engine.drains.drained() == frozenset()


async def test_it_is_killed_after_its_bound_if_other_engines_go_on_with_its_streams(client: Any, redis: Any) -> None:
    engine = Engine(client, 1, drain_timeout=0.05, streams_go_on=True)
    outcome = await engine.restart.run(stalled=False)
    assert outcome == Outcome("restarted", "0.05 s after its drain it still had requests, which went on elsewhere")
    assert engine.drained_at_restart == frozenset({"e0"})
    assert engine.killed
    assert await engine.drains.drained() == frozenset()


async def test_it_is_not_killed_if_no_other_engine_is_left_by_then(client: Any, redis: Any) -> None:
    engine = Engine(client, 1, drain_timeout=0.05, streams_go_on=True)
    left = iter((True, False))

    async def others() -> bool:
        return next(left)

    setattr(engine.restart, "_others_available", others)  # noqa: B010
    outcome = await engine.restart.run(stalled=False)
    assert outcome.problem == "it did not become idle within 0.05 s, and no other engine is left"
    assert engine.killed is None


async def test_a_stalled_engine_is_restarted_although_it_is_not_idle(
    client: Any, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_restart, "STALLED_DRAIN", 0.05)
    engine = Engine(client, 1, drain_timeout=600)
    outcome = await engine.restart.run(stalled=True)
    assert outcome == Outcome("restarted", "requests had stalled for 0.05 s after its drain")


async def test_the_last_engine_is_resumed_and_not_restarted(client: Any, redis: Any) -> None:
    engine = Engine(client, 0)
    engine.others_available = False
    assert (await engine.restart.run(stalled=True)).problem == "no other engine of the model is left"
    assert engine.drained_at_restart is None
    assert await engine.drains.drained() == frozenset()


async def test_an_engine_that_does_not_start_is_resumed_for_its_supervisor_to_start_it(client: Any, redis: Any) -> None:
    engine = Engine(client, 0)
    engine.failure = StartError("e0: ended with code 1")
    assert await engine.restart.run(stalled=False) == Outcome("not restarted", "e0: ended with code 1")
    assert await engine.drains.drained() == frozenset()


async def test_a_cancelled_restart_resumes_it(client: Any, redis: Any) -> None:
    engine = Engine(client, 1)
    running = asyncio.ensure_future(engine.restart.run(stalled=False))
    await eventually(_is_drained(engine))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await engine.drains.drained() == frozenset()


async def test_without_redis_it_is_not_restarted(own_redis: RedisServer) -> None:
    engine = Engine(open_client(own_redis.url, timeout=1), 0)
    outcome = await engine.restart.run(stalled=False)
    assert outcome.problem.startswith("it cannot be drained: Redis: ")
    assert engine.drained_at_restart is None


def _is_drained(engine: Engine) -> Callable[[], Any]:
    async def is_drained() -> bool:
        return "e0" in await engine.drains.drained()

    return is_drained
