"""The loop around one engine: what it does and records, with a real Redis and readings that the test gives."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from engines.watchdog.decision import WatchPolicy
from engines.watchdog.drains import Drains
from engines.watchdog.engine_watch import EngineWatch
from engines.watchdog.planned_restart import Outcome
from engines.watchdog.record import Record
from engines.watchdog.scrape import Scrape
from router.core.cache.redis_keys import WATCHDOG_LOG_KEY
from router.net.redis.connect import open_client
from router.shared.engines.announcements import AnnouncedEngine
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEP = 5.0


class Announcer:
    """Keeps what was announced."""

    def __init__(self) -> None:
        self.engine = AnnouncedEngine(name="e0", model="llama", task="any", url="http://127.0.0.1:1", served_model="l")

    async def change(self, name: str, **changes: Any) -> None:
        assert name == "e0"
        self.engine = replace(self.engine, **changes)


class Watched:
    """An engine that the test reads for the watch; time passes with each reading."""

    def __init__(self, client: Any, *, max_restarts: int = 2) -> None:
        self.now = 0.0
        self.generated = 0.0
        self.tokens_per_second = 400.0
        self.outcome = Outcome("restarted")
        self.restarts: list[bool] = []  # for each, whether it had stalled
        self.others_available = True
        self.broken = False
        self.lines: list[str] = []
        self.announcer = Announcer()
        self.drains = Drains(client)
        self.turn = asyncio.Lock()
        self.watch = EngineWatch(
            "e0", WatchPolicy(max_restarts=max_restarts), scrape=self._scrape, drains=self.drains, restart=self,
            others_available=self._others, is_hot=lambda: False, record=Record(client, self.lines.append),
            announcer=self.announcer, turn=self.turn, interval=0,
        )  # fmt: skip

    async def run(self, *, stalled: bool) -> Outcome:
        """In place of PlannedRestart."""
        assert self.turn.locked()
        self.restarts.append(stalled)
        return self.outcome

    async def steps(self, number: int) -> None:
        for _ in range(number):
            await self.watch.step()

    async def _scrape(self) -> Scrape:
        if self.broken:
            raise RuntimeError("boom")
        self.now += STEP
        self.generated += STEP * self.tokens_per_second
        return Scrape(at=self.now, healthy=True, running=8, waiting=3, generated=self.generated)

    async def _others(self) -> bool:
        return self.others_available


async def slow(client: Any, **options: Any) -> Watched:
    watched = Watched(client, **options)
    await watched.steps(40)
    assert watched.lines == []
    watched.tokens_per_second = 10
    return watched


async def recorded(redis: Any) -> list[tuple[str, str]]:
    return [(entry["event"], entry["reason"]) for _, entry in await redis.xrange(WATCHDOG_LOG_KEY)]


async def test_a_restart_is_recorded_before_and_after_it_and_counted(client: Any, redis: Any) -> None:
    watched = await slow(client)
    await watched.steps(20)
    assert watched.restarts == [False]
    assert await recorded(redis) == [("drain and restart", "degraded"), ("restarted", "degraded")]
    assert watched.announcer.engine.restarts == {"degraded": 1}


async def test_a_restart_that_fails_is_a_page_and_not_counted(client: Any, redis: Any) -> None:
    watched = await slow(client)
    watched.outcome = Outcome("not restarted", "e0: not ready after 30 s")
    await watched.steps(20)
    assert watched.lines[-1] == "e0: watchdog: page: not restarted: e0: not ready after 30 s"
    assert watched.announcer.engine.restarts == {}


async def test_a_stalled_engine_is_restarted_as_such(client: Any, redis: Any) -> None:
    watched = await slow(client)
    watched.tokens_per_second = 0
    await watched.steps(20)
    assert watched.restarts == [True]


async def test_without_restarts_left_it_is_drained_for_a_person(client: Any, redis: Any) -> None:
    watched = await slow(client, max_restarts=0)
    await watched.steps(20)
    assert await watched.drains.drained() == {"e0"}
    await watched.steps(200)
    assert await watched.drains.drained() == {"e0"}, "the watchdog does not resume it"
    assert watched.restarts == []


async def test_the_only_engine_stays_in_service(client: Any, redis: Any) -> None:
    watched = await slow(client)
    watched.others_available = False
    await watched.steps(20)
    assert await recorded(redis) == [("page", "degraded")]
    assert (await watched.drains.drained(), watched.restarts) == (frozenset(), [])


async def test_an_engine_that_a_killed_watchdog_has_left_drained_is_resumed_at_once(client: Any, redis: Any) -> None:
    await Drains(client).drain_for_restart("e0")
    watched = Watched(client)
    await watched.steps(1)
    assert watched.lines == ["e0: watchdog: resumed: a restart or a switch had left it drained"]
    assert await watched.drains.drained() == frozenset()


async def test_an_engine_that_could_not_be_resumed_is_resumed_when_redis_is_up_again(
    own_redis: RedisServer,
) -> None:
    await own_redis.start()
    client = open_client(own_redis.url, timeout=0.5)
    watched = await slow(client)

    async def run_and_lose_redis(*, stalled: bool) -> Outcome:
        await watched.drains.drain_for_restart("e0")
        own_redis.freeze()
        return Outcome("restarted")

    watched.run = run_and_lose_redis  # type: ignore[method-assign]
    await watched.steps(20)
    assert any("cannot write to Redis" in line for line in watched.lines)
    own_redis.thaw()
    await watched.steps(1)
    assert await watched.drains.drained() == frozenset()
    await client.aclose()


async def test_an_unexpected_failure_is_recorded_and_the_watch_continues(client: Any, redis: Any) -> None:
    watched = Watched(client)
    watched.broken = True
    running = asyncio.ensure_future(watched.watch.run())
    await eventually(lambda: watched.lines)
    assert watched.lines[0] == "e0: watchdog: failed: RuntimeError('boom')"
    watched.broken = False
    await eventually(lambda: watched.now > 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
