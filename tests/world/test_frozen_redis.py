"""What a frozen Redis costs the callers of a pipeline and of an entry store, exactly."""

import asyncio
from contextlib import aclosing

import pytest

from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.connection.redis import open_backend, open_pipeline
from tests.support.entry_factory import make_entry
from tests.support.store_fixture import StoreFixture
from tests.world.scenario import World, scenario

TIMEOUT = 1.0
RETRY = 60.0
BATCH = 1 << 20
"""Bytes that are sent in one batch."""


async def open_line(url: str) -> RedisPipeline:
    line = open_pipeline(open_backend(url, timeout=TIMEOUT), timeout=TIMEOUT, retry=RETRY)
    await line.start()
    assert line.up
    return line


def seconds() -> float:
    return asyncio.get_running_loop().time()


@scenario
async def test_a_frozen_redis_costs_one_timeout_however_many_wait_and_then_nothing(world: World) -> None:
    async with aclosing(await open_line(world.redis.url)) as line:
        world.redis.freeze()
        started = seconds()
        waiting = [line.execute(("INCR", "n"), size=BATCH // 10) for _ in range(500)]
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in failed} == {RedisDownError}
        # A batch of this size may take a tenth of a second longer.
        assert TIMEOUT <= seconds() - started <= TIMEOUT + 0.2, "once, and not once for each of the 50 batches"
        started = seconds()
        for _ in range(100):
            with pytest.raises(RedisDownError):
                line.execute(("INCR", "n"))
        assert seconds() == started, "no caller waits any more"


@scenario
async def test_a_frozen_redis_costs_the_lookups_of_a_store_one_timeout_and_then_nothing(world: World) -> None:
    async with aclosing(StoreFixture(world.redis.url, timeout=TIMEOUT)) as store:
        await store.start()
        entry = make_entry()
        assert await store.put("k", entry) == "stored"
        world.redis.freeze()
        started = seconds()
        failed = await asyncio.gather(*(store.get("k") for _ in range(100)), return_exceptions=True)
        assert {type(error) for error in failed} == {RedisDownError}
        assert seconds() - started == pytest.approx(TIMEOUT, abs=0.05), "in total, and not for each"
        assert not store.is_up
        started = seconds()
        for _ in range(100):
            with pytest.raises(RedisDownError):
                await store.get("k")
        assert seconds() == started, "no caller waits any more"
        world.redis.thaw()
        await store.wait_until_up()
        assert await store.get("k") == entry
