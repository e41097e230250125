"""What a process tells Redis about hits of its local copies."""

from typing import Any

import pytest

from router.shared.cache.local_hits import LocalHits
from tests.support.entry_factory import entry_key
from tests.support.redis_process import RedisServer

KEY, OTHER = entry_key(1), entry_key(2)


def touched(hits: LocalHits, *keys: str) -> list[Any]:
    return [command[1] for command in hits.touches(keys)]


def test_only_entries_with_a_local_copy_are_touched() -> None:
    assert touched(LocalHits({KEY}.__contains__), KEY, OTHER) == [KEY]


def test_an_entry_that_is_hit_all_the_time_is_touched_once_a_minute() -> None:
    hits = LocalHits(lambda key: True)
    rounds = [touched(hits, KEY, *([OTHER] if number >= 10 else [])) for number in range(60)]
    assert [number for number, keys in enumerate(rounds) if KEY in keys] == [0, 30]
    assert [number for number, keys in enumerate(rounds) if OTHER in keys] == [10, 40]


def test_the_number_of_entries_that_are_remembered_is_bounded() -> None:
    hits = LocalHits(lambda key: True)
    assert len(hits.touches(str(number) for number in range(60_000))) == 50_000
    assert hits.touches(["another"]) == []
    assert [len(hits.touches([])) for _ in range(28)] == [0] * 28
    assert touched(hits, "another") == ["another"]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_touch_counts_as_a_use_for_redis(own_redis: RedisServer) -> None:
    await own_redis.start()
    await own_redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    await own_redis.command("CONFIG", "SET", "lfu-log-factor", 0)
    await own_redis.command("HSET", KEY, "ttl", 60)
    used = int(await own_redis.command("OBJECT", "FREQ", KEY))
    (command,) = LocalHits(lambda key: True).touches([KEY])
    await own_redis.command(*command)  # type: ignore[arg-type]
    assert int(await own_redis.command("OBJECT", "FREQ", KEY)) == used + 1
