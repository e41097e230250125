"""Hits are counted in the process and summed in Redis, both within bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.redis_keys import hits_key
from router.shared.cache.hit_counter import COUNTS_TTL, MAX_ENTRIES_PER_TENANT, HitCounter
from tests.support.entry_factory import entry_key

in_session = pytest.mark.asyncio(loop_scope="session")


def counted(popularity: HitCounter) -> dict[Any, Any]:
    return {command[3]: command[2] for command in popularity.take_commands() if command[0] == "ZINCRBY"}


@given(st.lists(st.integers(0, 5)))
def test_every_hit_is_counted_once(numbers: list[int]) -> None:
    popularity = HitCounter()
    for number in numbers:
        popularity.record_hit(entry_key(number))
    assert counted(popularity) == {entry_key(n): numbers.count(n) for n in set(numbers)}
    assert popularity.take_commands() == []


def test_hits_beyond_the_capacity_are_not_counted_until_the_next_flush() -> None:
    popularity = HitCounter(max_entries=2)
    for number in (1, 2, 3, 1):
        popularity.record_hit(entry_key(number))
    assert counted(popularity) == {entry_key(1): 2, entry_key(2): 1}
    popularity.record_hit(entry_key(3))
    assert counted(popularity) == {entry_key(3): 1}


def test_each_tenant_has_counts_of_its_own() -> None:
    popularity = HitCounter()
    popularity.record_hit(entry_key(tenant="acme"))
    popularity.record_hit(entry_key(tenant="other"))
    assert [command[1] for command in popularity.take_commands()] == [
        hits_key(tenant) for tenant in ("acme", "other", "acme", "acme", "other", "other")
    ]


async def add_up(client: Any, popularity: HitCounter) -> None:
    batch = client.pipeline(transaction=False)
    for command in popularity.take_commands():
        batch.execute_command(*command)
    await batch.execute()


@in_session
async def test_counts_add_up_in_redis_and_expire(client: Any) -> None:
    popularity = HitCounter()
    for _ in range(3):
        popularity.record_hit(entry_key())
        popularity.record_hit(entry_key())
        await add_up(client, popularity)
    assert await client.zscore(hits_key("acme"), entry_key()) == 6
    assert COUNTS_TTL - 10 < await client.ttl(hits_key("acme")) <= COUNTS_TTL


@in_session
async def test_the_most_popular_remain_counted_in_redis(client: Any) -> None:
    popularity = HitCounter()
    for number in range(MAX_ENTRIES_PER_TENANT + 50):
        popularity.record_hit(entry_key(number))
        if number >= 50:
            popularity.record_hit(entry_key(number))
    await add_up(client, popularity)
    assert await client.zcard(hits_key("acme")) == MAX_ENTRIES_PER_TENANT
    assert await client.zscore(hits_key("acme"), entry_key(0)) is None
    assert await client.zscore(hits_key("acme"), entry_key(MAX_ENTRIES_PER_TENANT)) == 2
