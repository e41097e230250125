"""Breakers shared by processes: all learn of failures, and only one sends the probe."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.core.cache.redis_keys import breaker_key, probe_key
from router.core.resilience.breaker import BreakerPolicy, BreakerState
from router.net.redis.clock import RedisClock
from router.net.redis.listener import Listener
from router.net.tasks import cancel_and_wait
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.engines.breakers import Breakers
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMITS = BreakerPolicy(open_above=0.88, close_below=0.79, failures=2, cooldown=10)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        """`up_for`: the machine's monotonic clock minus `clock`, which is Redis' clock."""
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


class Process:
    """The breakers of one router process."""

    def __init__(self, server: RedisServer, clock: Callable[[], float], *, up_for: float = 0.0) -> None:
        """`up_for`: what the machine's monotonic clock shows beyond `clock`, which is Redis' clock."""
        link = open_backend(server.url, timeout=2)
        self.line = open_pipeline(link, timeout=30, retry=0.02)
        self.redis_clock = RedisClock(wall=clock, monotonic=lambda: clock() + up_for)
        self.breakers = Breakers(self.line, LIMITS, engine_names=lambda: ("a", "b"), clock=self.redis_clock)
        self.connected = asyncio.Event()
        prefix = breaker_key("")
        self._listener = Listener(link, prefixes=[prefix], channels=["test"], callbacks=self, retry_interval=0.02)

    async def start(self) -> None:
        await self.line.start()
        self._task = asyncio.create_task(self._listener.run())

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        await self.line.aclose()

    def on_connected(self) -> None:
        self.breakers.refresh()
        self.connected.set()

    def on_disconnected(self) -> None:
        self.connected.clear()

    def on_keys_changed(self, keys: Any) -> None:
        for key in keys or ():
            self.breakers.on_key_changed(key.decode())

    def on_message(self, channel: bytes, payload: bytes) -> None:
        raise AssertionError(payload)

    def is_(self, state: BreakerState, engine: str = "a") -> Callable[[], bool]:
        return lambda: self.breakers.state(engine) is state

    def fails(self, engine: str = "a") -> None:
        for _ in range(LIMITS.failures):
            self.breakers.on_failure(engine)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def processes(server: RedisServer, clock: Clock, number: int) -> AsyncIterator[list[Process]]:
    started = [Process(server, clock) for _ in range(number)]
    for process in started:
        await process.start()
    try:
        yield started
    finally:
        for process in started:
            await process.stop()


async def test_a_breaker_that_opens_in_one_process_opens_in_all_and_closes_in_all(
    redis_server: RedisServer, redis: Any, clock: Clock
) -> None:
    async with processes(redis_server, clock, 3) as all_:
        await asyncio.gather(*(process.connected.wait() for process in all_))
        all_[0].fails()
        for process in all_:
            await eventually(process.is_(BreakerState.OPEN))
            assert process.is_(BreakerState.CLOSED, "b")()
            assert process.breakers.retry_after("a") == 10
        clock.now += 10
        assert all(process.is_(BreakerState.HALF_OPEN)() for process in all_)
        assert await all_[1].breakers.claim_probe("a")
        all_[1].breakers.on_success("a", probe=True)
        all_[1].breakers.release_probe("a")
        for process in all_:
            await eventually(process.is_(BreakerState.CLOSED))


async def test_pressure_is_shared_as_well(redis_server: RedisServer, redis: Any, clock: Clock) -> None:
    async with processes(redis_server, clock, 2) as (one, other):
        await asyncio.gather(one.connected.wait(), other.connected.wait())
        one.breakers.on_kv_usage("a", 0.9)
        await eventually(other.is_(BreakerState.OPEN))
        assert other.breakers.under_pressure("a")
        other.breakers.on_kv_usage("a", 0.85)
        assert other.is_(BreakerState.OPEN)(), "between the marks it stays as it is"
        other.breakers.on_kv_usage("a", 0.5)
        await eventually(one.is_(BreakerState.CLOSED))


async def test_a_process_that_starts_later_knows_the_earlier_state(
    redis_server: RedisServer, redis: Any, clock: Clock
) -> None:
    async with processes(redis_server, clock, 1) as (one,):
        one.fails()
        await eventually(lambda: redis.exists(breaker_key("a")))
        assert 0 < await redis.pttl(breaker_key("a")) <= 70_000
        async with processes(redis_server, clock, 1) as (later,):
            await eventually(later.is_(BreakerState.OPEN))


async def test_one_of_all_processes_sends_the_probe(redis_server: RedisServer, redis: Any, clock: Clock) -> None:
    async with processes(redis_server, clock, 3) as all_:
        await asyncio.gather(*(process.connected.wait() for process in all_))
        all_[0].fails()
        for process in all_:
            await eventually(process.is_(BreakerState.OPEN))
        clock.now += 11
        claims = await asyncio.gather(*(process.breakers.claim_probe("a") for process in all_ for _ in range(20)))
        assert sum(claims) == 1
        has_it = all_[claims.index(True) // 20]
        assert 0 < await redis.pttl(probe_key("a")) <= 1000 * LIMITS.cooldown
        has_it.breakers.on_failure("a", probe=True)
        has_it.breakers.release_probe("a")
        clock.now += 1
        for process in all_:
            await eventually(process.is_(BreakerState.OPEN))
            assert process.breakers.retry_after("a") == 9
        clock.now += 9
        claims = await asyncio.gather(*(process.breakers.claim_probe("a") for process in all_))
        assert sum(claims) == 1


async def test_a_process_that_gets_the_claim_after_a_failed_probe_learns_of_that_first(
    redis_server: RedisServer, redis: Any, clock: Clock
) -> None:
    async with processes(redis_server, clock, 1) as (deaf,):
        await deaf.connected.wait()
        deaf.fails()
        clock.now += 11
        async with processes(redis_server, clock, 1) as (other,):
            await eventually(other.is_(BreakerState.HALF_OPEN))
            assert await other.breakers.claim_probe("a")
            other.breakers.on_failure("a", probe=True)
            other.breakers.release_probe("a")
            assert not await deaf.breakers.claim_probe("a")
            assert deaf.is_(BreakerState.OPEN)()


async def test_a_client_that_disconnects_releases_the_claim(
    redis_server: RedisServer, redis: Any, clock: Clock
) -> None:
    async with processes(redis_server, clock, 2) as (one, other):
        for process in (one, other):
            await process.connected.wait()
        one.fails()
        await eventually(other.is_(BreakerState.OPEN))
        clock.now += 11
        leaving = asyncio.create_task(one.breakers.claim_probe("a"))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])

        async def is_free() -> bool:
            clock.now += 1
            return await other.breakers.claim_probe("a")

        await eventually(is_free)


async def test_machines_whose_monotonic_clocks_differ_mean_the_same_instant(
    redis_server: RedisServer, redis: Any, clock: Clock
) -> None:
    one, other = Process(redis_server, clock, up_for=100), Process(redis_server, clock, up_for=1e8)
    for process in (one, other):
        await process.start()
        await process.connected.wait()
    one.fails("a")
    await eventually(other.is_(BreakerState.OPEN))
    decoded = json.loads(await redis.get(breaker_key("a")))
    assert decoded["until"] == pytest.approx(clock.now + 10, abs=0.001, rel=0), "in Redis' time, as people read it"
    clock.now += 9.9
    assert one.is_(BreakerState.OPEN)()
    assert other.is_(BreakerState.OPEN)()
    clock.now += 0.2
    assert one.is_(BreakerState.HALF_OPEN)()
    assert other.is_(BreakerState.HALF_OPEN)()
    for process in (one, other):
        await process.stop()


async def test_a_clock_of_redis_that_is_set_back_keeps_no_breaker_open(
    redis_server: RedisServer, redis: Any, clock: Clock
) -> None:
    async with processes(redis_server, clock, 2) as (one, other):
        for process in (one, other):
            await process.connected.wait()
        one.fails("a")
        await eventually(other.is_(BreakerState.OPEN))
        for process in (one, other):
            process.redis_clock.update([int(clock.now) - 3600, 0], clock.now)
            process.breakers.refresh()  # reads again what was written with the previous clock
        await asyncio.gather(*(process.line.execute(("PING",)) for process in (one, other)))
        clock.now += 10
        assert one.is_(BreakerState.HALF_OPEN)()
        assert other.is_(BreakerState.HALF_OPEN)()


async def test_without_redis_each_process_has_its_own(own_redis: RedisServer, clock: Clock) -> None:
    await own_redis.start()
    async with processes(own_redis, clock, 2) as (one, other):
        await asyncio.gather(one.connected.wait(), other.connected.wait())
        own_redis.kill()
        await eventually(lambda: _asks_in_vain(one))
        one.fails()
        assert (one.is_(BreakerState.OPEN)(), other.is_(BreakerState.CLOSED)()) == (True, True)
        clock.now += 11
        assert [await one.breakers.claim_probe("a") for _ in range(3)] == [True, False, False]
        one.breakers.release_probe("a")
        assert await one.breakers.claim_probe("a")
        one.breakers.on_failure("a", probe=True)
        await own_redis.start()
        await asyncio.gather(one.connected.wait(), other.connected.wait())
        assert one.is_(BreakerState.OPEN)(), "an empty Redis changes nothing"


async def _asks_in_vain(process: Process) -> bool:
    process.breakers.refresh()
    return not process.line.up


@pytest.mark.parametrize(
    "value", [b"", b"nonsense", b"[]", b'{"until":"soon"}', b"\xff\xfe", b'{"until":1e999}', b"[" * 10_000]
)
async def test_an_invalid_value_in_redis_is_ignored(
    redis_server: RedisServer, redis: Any, clock: Clock, value: bytes
) -> None:
    async with processes(redis_server, clock, 1) as (one,):
        await one.connected.wait()
        await redis.set(breaker_key("a"), value)
        await redis.set(breaker_key("nobody"), b'{"until":1e12}')
        await redis.set(breaker_key("b"), b'{"until":1e12}')
        await eventually(one.is_(BreakerState.OPEN, "b"))
        assert one.is_(BreakerState.CLOSED)()
        assert one.is_(BreakerState.CLOSED, "nobody")()
        assert one.breakers.retry_after("b") == 10, "at most a cooldown, whatever the value"


async def test_a_key_of_another_type_does_no_harm(redis_server: RedisServer, redis: Any, clock: Clock) -> None:
    async with processes(redis_server, clock, 1) as (one,):
        await one.connected.wait()
        await redis.rpush(breaker_key("a"), "x")
        await redis.rpush(probe_key("b"), "x")
        one.fails("b")
        assert one.is_(BreakerState.OPEN, "b")()
        clock.now += 11
        assert not await one.breakers.claim_probe("b"), "the claim seems to be taken"
