"""What the watchdog drains and resumes, in a real Redis."""

from typing import Any

import pytest

from engines.watchdog.drains import DrainError, Drains
from router.core.cache.redis_keys import watchdog_drain_key
from router.net.redis.connect import open_client
from router.shared.engines.drains import drain_command
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_engine_is_drained_for_a_restart_and_resumed(client: Any, redis: Any) -> None:
    drains = Drains(client)
    await drains.drain_for_restart("e0")
    assert await drains.drained() == {"e0"}
    assert await redis.exists(watchdog_drain_key("e0"))
    assert await drains.resume_after_restart("e0")
    assert await drains.drained() == frozenset()
    assert not await redis.exists(watchdog_drain_key("e0"))


async def test_an_engine_that_a_person_has_drained_is_not_to_be_resumed(client: Any) -> None:
    drains = Drains(client)
    await client.execute_command(*drain_command("e0"))
    await drains.drain_for_restart("e0")
    assert not await drains.resume_after_restart("e0")
    assert await drains.drained() == {"e0"}


async def test_what_a_killed_watchdog_has_left_drained_is_resumed(client: Any) -> None:
    await Drains(client).drain_for_restart("e0")
    later = Drains(client)
    assert [await later.resume_after_restart("e0") for _ in range(2)] == [True, False]
    assert await later.drained() == frozenset()


async def test_without_redis_every_change_fails_with_the_reason(own_redis: RedisServer) -> None:
    drains = Drains(open_client(own_redis.url, timeout=1))
    changes = [drains.drain("e0"), drains.drain_for_restart("e0"), drains.resume_after_restart("e0"), drains.drained()]
    for change in changes:
        with pytest.raises(DrainError, match="Redis: "):
            await change
