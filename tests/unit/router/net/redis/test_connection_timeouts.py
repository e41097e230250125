"""When a RedisConnection gives a server up, on virtual time."""

import asyncio
from typing import Any

import pytest

from router.net.redis.backend import ReplyFuture
from router.net.redis.errors import RedisBackendError
from tests.support.redis_peer import ConnectedPair, connected_pair
from tests.support.virtual_time import on_virtual_time
from tests.support.waiting import eventually

GET = ("GET", "k")
DELAY = 0.05
"""Seconds: more than the delays of the virtual network, and the turn of the loop that late replies get."""


async def replies(answer: ReplyFuture) -> list[Any]:
    return await answer


async def seconds_until_timeout(answer: ReplyFuture) -> float:
    clock = asyncio.get_running_loop().time
    started = clock()
    with pytest.raises(RedisBackendError, match="TimeoutError"):
        await answer
    return clock() - started


def is_after(expected: float) -> Any:
    """Equal to a time that is at most a DELAY longer."""
    return pytest.approx(expected + DELAY / 2, abs=DELAY / 2)


@on_virtual_time
async def test_each_batch_has_its_own_timeout_whatever_the_one_before_took() -> None:
    async with connected_pair() as pair:
        for timeout in (30, 0.5, 30):
            batch = pair.connection.execute([GET], timeout)
            await pair.server.send(b":1\r\n")
            assert await batch == [1]
        assert await seconds_until_timeout(pair.connection.execute([GET], 0.5)) == is_after(0.5)
        await eventually(lambda: pair.server.left)


@on_virtual_time
async def test_a_batch_may_take_longer_than_the_one_before_might() -> None:
    async with connected_pair() as pair:
        for timeout, reply_after in ((0.5, 0.4), (30, 29), (0.5, 0.4)):
            batch = asyncio.ensure_future(replies(pair.connection.execute([GET], timeout)))
            await asyncio.sleep(reply_after)
            await pair.server.send(b":1\r\n")
            assert await batch == [1]


@on_virtual_time
async def test_replies_that_keep_arriving_may_take_longer_than_the_timeout() -> None:
    async with connected_pair() as pair:
        batch = asyncio.ensure_future(replies(pair.connection.execute([GET], 0.5, extra_time=30)))
        await pair.server.send(b"$1000\r\n")
        for _ in range(10):
            await pair.server.send(b"x" * 100)
            await asyncio.sleep(0.4)
        await pair.server.send(b"\r\n")
        assert await batch == [b"x" * 1000]
        assert pair.connection.ready


@on_virtual_time
async def test_replies_that_stop_arriving_time_out() -> None:
    async with connected_pair() as pair:
        batch = pair.connection.execute([GET], 0.5, extra_time=30)
        await asyncio.sleep(0.4)
        await pair.server.send(b"$1000\r\nx")
        assert await seconds_until_timeout(batch) == is_after(0.5)


@on_virtual_time
async def test_a_server_that_never_replies_times_out() -> None:
    async with connected_pair() as pair:
        assert await seconds_until_timeout(pair.connection.execute([GET], 0.5, extra_time=30)) == is_after(0.5)


@on_virtual_time
async def test_replies_that_arrive_one_byte_at_a_time_time_out_at_the_maximum() -> None:
    async def drip(pair: ConnectedPair) -> None:
        await pair.server.send(b"$1000\r\n")
        while True:
            await pair.server.send(b"x")
            await asyncio.sleep(0.3)

    async with connected_pair() as pair:
        batch = pair.connection.execute([GET], 0.5, extra_time=2)
        dripping = asyncio.ensure_future(drip(pair))
        assert await seconds_until_timeout(batch) == is_after(2.5)
        dripping.cancel()
