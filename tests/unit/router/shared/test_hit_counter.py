"""Hits are counted in the process and added up in Redis, both within bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.redis_keys import hits_of
from router.shared.hit_counter import KEPT, LASTING, Popularity
from tests.support.entry_factory import key

in_session = pytest.mark.asyncio(loop_scope="session")


def counted(popularity: Popularity) -> dict[Any, Any]:
    return {command[3]: command[2] for command in popularity.take() if command[0] == "ZINCRBY"}


@given(st.lists(st.integers(0, 5)))
def test_every_hit_is_counted_once(numbers: list[int]) -> None:
    popularity = Popularity()
    for number in numbers:
        popularity.note(key(number))
    assert counted(popularity) == {key(n): numbers.count(n) for n in set(numbers)}
    assert popularity.take() == []


def test_what_does_not_fit_goes_uncounted_until_the_next_time() -> None:
    popularity = Popularity(counted=2)
    for number in (1, 2, 3, 1):
        popularity.note(key(number))
    assert counted(popularity) == {key(1): 2, key(2): 1}
    popularity.note(key(3))
    assert counted(popularity) == {key(3): 1}


def test_each_tenant_has_counts_of_its_own() -> None:
    popularity = Popularity()
    popularity.note(key(tenant="acme"))
    popularity.note(key(tenant="other"))
    assert [command[1] for command in popularity.take()] == [
        hits_of(tenant) for tenant in ("acme", "other", "acme", "acme", "other", "other")
    ]


async def add_up(client: Any, popularity: Popularity) -> None:
    batch = client.pipeline(transaction=False)
    for command in popularity.take():
        batch.execute_command(*command)
    await batch.execute()


@in_session
async def test_counts_add_up_in_redis_and_expire(client: Any) -> None:
    popularity = Popularity()
    for _ in range(3):
        popularity.note(key())
        popularity.note(key())
        await add_up(client, popularity)
    assert await client.zscore(hits_of("acme"), key()) == 6
    assert LASTING - 10 < await client.ttl(hits_of("acme")) <= LASTING


@in_session
async def test_the_most_popular_remain_counted_in_redis(client: Any) -> None:
    popularity = Popularity()
    for number in range(KEPT + 50):
        popularity.note(key(number))
        if number >= 50:
            popularity.note(key(number))
    await add_up(client, popularity)
    assert await client.zcard(hits_of("acme")) == KEPT
    assert await client.zscore(hits_of("acme"), key(0)) is None
    assert await client.zscore(hits_of("acme"), key(KEPT)) == 2
