"""The watchdog's log in Redis."""

from typing import Any

import pytest

from engines.watchdog.observation import Observation
from engines.watchdog.record import MAX_RECORDS, Record
from router.core.cache.redis_keys import WATCHDOG_LOG_KEY
from router.net.redis.connect import open_client
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEEN = Observation(healthy=True, waiting=14, generated=40.25)


async def test_an_entry_has_the_event_the_reason_and_the_known_figures(client: Any, redis: Any) -> None:
    lines: list[str] = []
    await Record(client, lines.append).write("e0", "page", "it is slow", SEEN, reason="degraded")
    assert lines == ["e0: watchdog: page: it is slow"]
    ((_, entry),) = await redis.xrange(WATCHDOG_LOG_KEY)
    assert entry == {
        "engine": "e0", "event": "page", "text": "it is slow", "reason": "degraded", "healthy": "true",
        "restarted": "false", "hot": "false", "waiting": "14", "generated": "40.25",
    }  # fmt: skip


async def test_the_log_is_bounded(client: Any, redis: Any) -> None:
    record = Record(client, lambda _: None)
    for _ in range(MAX_RECORDS + 300):
        await record.write("e0", "page", "")
    assert MAX_RECORDS <= await redis.xlen(WATCHDOG_LOG_KEY) < MAX_RECORDS + 200


async def test_without_redis_a_person_is_told_all_the_same(own_redis: RedisServer) -> None:
    lines: list[str] = []
    await Record(open_client(own_redis.url, timeout=1), lines.append).write("e0", "page", "it is slow")
    assert lines[0] == "e0: watchdog: page: it is slow"
    assert lines[1].startswith("e0: watchdog: cannot write to Redis: ")
