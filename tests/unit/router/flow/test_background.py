"""What the background tasks send to Redis does not delay requests."""

import asyncio
from typing import Any

import pytest

from router.core.cache.redis_keys import hits_key
from router.flow.replicas.background import execute_in_turns
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
