"""What the background tasks send to Redis does not delay requests."""

import asyncio
from typing import Any

import pytest

from router.core.cache.redis_keys import hits_key
from router.flow.replicas.background import BackgroundServices, Service, execute_in_turns
from router.shared.cache.hit_counter import MAX_ENTRIES_PER_TENANT, HitCounter
from router.shared.connection.redis import open_backend, open_pipeline
from tests.support.entry_factory import entry_key
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_lookup_does_not_wait_for_the_counts_of_thousands_of_hits(
    redis_server: RedisServer, redis: Any
) -> None:
    pipeline = open_pipeline(open_backend(redis_server.url, timeout=1), timeout=2.5, retry=0.02)
    await pipeline.start()
    hit_counter = HitCounter()
    for number in range(3000):
        hit_counter.record_hit(entry_key(number))
    flush = asyncio.create_task(execute_in_turns(pipeline, hit_counter.take_commands()))
    await asyncio.sleep(0)  # the flush begins
    (counted,) = await pipeline.execute(("ZCARD", hits_key("acme")))
    assert 0 < counted < MAX_ENTRIES_PER_TENANT
    await flush
    assert await redis.zcard(hits_key("acme")) == MAX_ENTRIES_PER_TENANT
    await pipeline.aclose()


async def test_services_start_in_their_order_and_are_closed_in_the_reverse_one_when_none_runs(
    redis_server: RedisServer,
) -> None:
    events: list[str] = []

    def service(name: str) -> Service:
        async def read() -> None:
            events.append(f"read {name}")

        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                events.append(f"end {name}")

        return Service(read, run, lambda: events.append(f"close {name}"))

    pipeline = open_pipeline(open_backend(redis_server.url, timeout=1), timeout=2.5, retry=0.02)
    services = BackgroundServices(pipeline, [Service(close=pipeline.aclose), service("one"), service("two")])
    await services.start()
    assert events == ["read one", "read two"]
    await asyncio.sleep(0)
    await services.aclose()
    assert sorted(events[2:4]) == ["end one", "end two"]
    assert events[4:] == ["close two", "close one"]


async def test_without_redis_nothing_is_read_and_the_services_run(own_redis: RedisServer) -> None:
    started = asyncio.Event()

    async def read() -> None:
        raise AssertionError

    async def run() -> None:
        started.set()

    pipeline = open_pipeline(open_backend(own_redis.url, timeout=1), timeout=2.5, retry=0.02)
    services = BackgroundServices(pipeline, [Service(close=pipeline.aclose), Service(read, run)])
    await services.start()
    await started.wait()
    await services.aclose()
