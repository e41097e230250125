"""The guarantees of RedisClock: Redis' time, independent of the clocks of this machine."""

import asyncio
import logging
import time
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.net.redis.clock import RedisClock
from router.net.redis.listener import Listener
from router.net.tasks import cancel_and_wait
from router.shared.connection.redis import open_backend, open_pipeline
from tests.support.redis_deployments import Deployment
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

on_the_loop = pytest.mark.asyncio(loop_scope="session")

AN_HOUR = 3600.0


class Machine:
    """A router's machine: its monotonic clock shows `now`, its wall clock `now` + `wall`."""

    def __init__(self, wall: float = 0.0) -> None:
        self.now = 50.0
        self.wall = wall
        self.clock = RedisClock(wall=lambda: self.now + self.wall, monotonic=lambda: self.now)

    def ask(self, redis: float, *, there: float = 0.0, delay_back: float = 0.0, server: int | None = None) -> None:
        """Reads a Redis whose clock is `redis` seconds ahead of the monotonic one; `there` and `back` are delays."""
        sent = self.now
        self.now += there
        server_time = self.now + redis
        self.now += delay_back
        self.clock.update(reply(server_time), sent, server)

    def offset(self) -> float:
        return self.clock.now() - self.now


def reply(seconds: float) -> list[bytes]:
    """A reply to TIME."""
    microseconds = round(seconds * 1e6)
    return [b"%d" % (microseconds // 1_000_000), b"%d" % (microseconds % 1_000_000)]


def about(seconds: float) -> Any:
    return pytest.approx(seconds, rel=0, abs=1e-3)


def test_before_the_first_reply_of_redis_it_is_the_time_of_this_machine() -> None:
    machine = Machine(wall=1e9)
    machine.now += 7
    assert machine.clock.now() == about(1e9 + 57)


@pytest.mark.parametrize("skew", [-AN_HOUR, 0, AN_HOUR])
def test_routers_whose_wall_clocks_differ_have_the_same_time(skew: float) -> None:
    machine = Machine(wall=1e9 + skew)
    machine.ask(1e9)
    assert machine.offset() == about(1e9)
    machine.wall -= AN_HOUR
    assert machine.offset() == about(1e9), "a changed wall clock makes no difference"


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2)), min_size=1))
def test_it_never_differs_by_more_than_the_fastest_round_trip(ways: list[tuple[float, float]]) -> None:
    machine = Machine()
    for there, delay_back in ways:
        machine.ask(1e9, there=there, delay_back=delay_back)
    assert abs(machine.offset() - 1e9) <= min(there + delay_back for there, delay_back in ways) + 1e-5


def test_a_reply_that_is_late_because_the_process_was_frozen_changes_nothing() -> None:
    machine = Machine()
    machine.ask(1e9)
    machine.ask(1e9, there=0.001, delay_back=60)
    assert machine.offset() == about(1e9)


@pytest.mark.parametrize(("step", "word"), [(-AN_HOUR, "back"), (AN_HOUR, "forward")])
def test_a_change_of_redis_clock_is_followed_and_logged(
    step: float, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    machine.ask(1e9)
    machine.ask(1e9 + 0.5)
    machine.ask(1e9)
    assert caplog.text == "", "small adjustments are not logged"
    with caplog.at_level(logging.WARNING):
        machine.ask(1e9 + step)
    assert machine.offset() == about(1e9 + step)
    assert f"Redis' clock has jumped {word} by 360" in caplog.text


@pytest.mark.parametrize("reply_", [None, Exception("NOPERM"), [], [b"x", b"y"], [b"1"], 5, b"12"])
def test_an_invalid_time_changes_nothing(reply_: Any) -> None:
    machine = Machine()
    machine.ask(1e9)
    machine.clock.update(reply_, machine.now)
    assert machine.offset() == about(1e9)


def test_with_several_servers_the_median_counts_once_all_have_replied() -> None:
    machine = Machine()
    machine.ask(1e9)
    machine.clock.set_server_count(3)
    machine.ask(1e9 + AN_HOUR, server=0)
    machine.ask(1e9 + 0.2, server=1)
    assert machine.offset() == about(1e9)
    machine.ask(1e9 + 0.1, server=2)
    assert machine.offset() == about(1e9 + 0.2)
    machine.ask(1e9 + AN_HOUR)
    assert machine.offset() == about(1e9 + 0.2), "which server that was is not known"
    machine.clock.set_server_count(0)
    machine.ask(1e9)
    assert machine.offset() == about(1e9)


def test_an_instant_is_the_same_by_both_clocks() -> None:
    machine = Machine()
    machine.ask(1e9)
    assert machine.clock.to_redis_time(machine.now) == about(machine.clock.now())
    assert machine.clock.to_monotonic(machine.clock.to_redis_time(17.0)) == about(17.0)


# -- with a real Redis, which has this machine's clock ----------------------------------------------------------------


class NoopCallbacks:
    """Ignores all events."""

    def on_connected(self) -> None:
        pass

    def on_disconnected(self) -> None:
        pass

    def on_keys_changed(self, keys: Any) -> None:
        pass

    def on_message(self, channel: bytes, payload: bytes) -> None:
        pass


def is_right(clock: RedisClock) -> bool:
    return abs(clock.now() - time.time()) < 1


@on_the_loop
async def test_a_pipeline_sets_it_as_soon_as_redis_replies(deployment: Deployment) -> None:
    clock = RedisClock(wall=lambda: time.time() - AN_HOUR)
    line = open_pipeline(open_backend(deployment.url, timeout=2), timeout=2, retry=0.02, clock=clock)
    assert not is_right(clock)
    await line.start()
    assert is_right(clock)
    await line.aclose()


@on_the_loop
async def test_a_listener_keeps_it_correct(deployment: Deployment) -> None:
    skewed = [-AN_HOUR]
    clock = RedisClock(wall=lambda: 0.0, monotonic=lambda: time.monotonic() + skewed[0])
    async with aclosing(open_backend(deployment.url, timeout=2)) as link:
        await link.execute([("PING",)], 2)
        listener = Listener(
            link,
            prefixes=["rh:1:acme:"],
            channels=["rh:1:process:test"],
            callbacks=NoopCallbacks(),
            retry_interval=0.02,
            clock=clock,
        )
        task = asyncio.create_task(listener.run())
        await eventually(lambda: is_right(clock))
        skewed[0] += AN_HOUR / 2
        await eventually(lambda: is_right(clock))
        await cancel_and_wait(task)


@on_the_loop
async def test_a_redis_that_refuses_time_leaves_it_unchanged(own_redis: RedisServer) -> None:
    await own_redis.start()
    await own_redis.command("ACL", "SETUSER", "default", "-time")
    clock = RedisClock()
    line = open_pipeline(open_backend(own_redis.url, timeout=2), timeout=2, retry=0.02, clock=clock)
    await line.start()
    assert line.up
    assert is_right(clock)
    await line.aclose()
