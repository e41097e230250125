"""Quotas in Redis: the script does the same as the ledger, atomically, whatever its key contains."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.core.cache.redis_keys import limit_key
from router.core.quota.rate_limit import Quota, TenantUsage, UsageUpdate
from router.net.redis.pipeline import RedisPipeline
from router.settings import parse
from router.shared.rate_limits import (
    RUNNING_LEASE_MS,
    Reservation,
    TenantLimits,
    decode_status,
    tenant_quotas,
    update_command,
)
from router.shared.redis import open_backend, open_pipeline
from tests.support.redis_process import RedisServer
from tests.support.router_server import router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = limit_key("acme")


@pytest_asyncio.fixture(loop_scope="session")
async def lines(own_redis: RedisServer) -> AsyncIterator[list[RedisPipeline]]:
    """The pipelines of two processes to one Redis."""
    await own_redis.start()
    opened = [open_pipeline(open_backend(own_redis.url, timeout=1), timeout=0.5, retry=0.02) for _ in range(2)]
    for line in opened:
        await line.start()
    yield opened
    for line in opened:
        await line.aclose()


async def test_a_tenant_has_the_limits_of_its_table() -> None:
    text = (
        '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\nrequests_per_minute = 2\ntokens_per_minute = 3\n'
        'concurrent_requests = 4\n[[tenant]]\nname = "free"\n'
    )
    engines = {"one": ("llama", "any", "http://127.0.0.1:1")}
    assert tenant_quotas(parse(router_config("unix:///x", engines, rest=text), {})) == {
        "acme": Quota(requests_per_minute=2, tokens_per_minute=3, concurrent_requests=4),
        "free": Quota(),
    }


def both(lines: list[RedisPipeline], **limits: int) -> list[TenantLimits]:
    return [TenantLimits(line, {"acme": Quota(**limits), "free": Quota()}) for line in lines]


async def ask(limits: TenantLimits) -> Reservation:
    permit = await limits.reserve("acme")
    assert permit is not None
    return permit


STEPS = st.lists(
    st.tuples(
        st.integers(-3000, 30_000) | st.just(-3_600_000),
        st.builds(
            UsageUpdate,
            process=st.sampled_from("pqr"),
            acquire=st.booleans(),
            released=st.integers(0, 2),
            running=st.none() | st.integers(0, 3),
            tokens_used=st.integers(0, 200),
        ),
    ),
    max_size=25,
)
SOME = st.builds(
    Quota,
    requests_per_minute=st.none() | st.integers(1, 5),
    tokens_per_minute=st.none() | st.integers(1, 300),
    concurrent_requests=st.none() | st.integers(1, 4),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(SOME, STEPS)
async def test_the_script_counts_as_the_ledger_does(
    redis: Any, limits: Quota, steps: list[tuple[int, UsageUpdate]]
) -> None:
    await redis.delete(KEY)
    ledger, now = TenantUsage(), 1_800_000_000_000
    for gap, step in steps:
        now += gap
        in_redis = decode_status(await redis.execute_command(*update_command(KEY, limits, step, now)))
        assert in_redis == ledger.apply(limits, step, now, RUNNING_LEASE_MS)


@pytest.mark.parametrize("rubbish", ["", "no json", "[1]", '"x"', "{}", '{"at": 5}', '{"requests": 1, "working": 2}'])
async def test_what_stands_at_the_key_and_is_none_of_ours_is_replaced(redis: Any, rubbish: str) -> None:
    limits = Quota(requests_per_minute=2)
    await redis.set(KEY, rubbish)
    allowance = decode_status(
        await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    )
    assert (allowance.exceeded, allowance.requests_remaining) == (None, 1)
    await redis.delete(KEY)
    await redis.rpush(KEY, "a", "list")
    allowance = decode_status(
        await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    )
    assert (allowance.exceeded, allowance.requests_remaining) == (None, 1)


async def test_what_is_kept_expires_once_it_means_nothing_any_more(redis: Any) -> None:
    limits = Quota(tokens_per_minute=60, requests_per_minute=5)
    await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    assert 55 < await redis.ttl(KEY) <= 62
    await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", tokens_used=600)))
    assert 595 < await redis.ttl(KEY) <= 601, "a debt of ten minutes"


async def test_of_many_that_ask_at_once_at_two_processes_exactly_so_many_come_in_as_may(
    lines: list[RedisPipeline],
) -> None:
    limits = both(lines, requests_per_minute=37)
    permits = await asyncio.gather(*(ask(limits[n % 2]) for n in range(200)))
    assert sum(permit.status.exceeded is None for permit in permits) == 37
    assert {permit.status.requests_remaining for permit in permits} == set(range(37))


async def test_a_tenant_without_limits_asks_nobody(lines: list[RedisPipeline], own_redis: RedisServer) -> None:
    (limits, _) = both(lines, requests_per_minute=1)
    assert limits.has_limits("acme")
    assert not limits.has_limits("free")
    assert not limits.has_limits("unheard-of")
    limits.subtract_tokens("free", 10)
    assert await own_redis.command("KEYS", "*") == []


async def test_places_are_counted_over_both_and_given_back(lines: list[RedisPipeline]) -> None:
    one, other = both(lines, concurrent_requests=3)
    permits = [await ask(one), await ask(other), await ask(one)]
    assert [permit.status.exceeded for permit in permits] == [None] * 3
    refused = await ask(other)
    assert refused.status.exceeded == "concurrent requests"
    refused.release()
    assert (await ask(one)).status.exceeded is not None, "who was refused had no place to give back"
    permits[0].release()
    permits[0].release()
    assert [(await ask(other)).status.exceeded for _ in range(2)] == [None, "concurrent requests"]


async def test_whoever_leaves_while_he_asks_holds_no_place(lines: list[RedisPipeline]) -> None:
    one, other = both(lines, concurrent_requests=1)
    asking = asyncio.ensure_future(ask(one))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])

    async def comes_in() -> bool:
        return (await ask(other)).status.exceeded is None

    await eventually(comes_in)


async def test_a_process_that_lives_keeps_its_places_and_one_that_is_gone_does_not(lines: list[RedisPipeline]) -> None:
    one, other = both(lines, concurrent_requests=1)
    telling = asyncio.ensure_future(one.run())
    assert (await ask(one)).status.exceeded is None
    began = time.monotonic()

    async def comes_in() -> bool:
        return (await ask(other)).status.exceeded is None

    async def is_refused() -> bool:
        return time.monotonic() - began > 1.5 * RUNNING_LEASE_MS / 1000 or await comes_in()

    await eventually(is_refused)
    assert not await comes_in()
    telling.cancel()
    await eventually(comes_in)
    assert time.monotonic() - began < 4 * RUNNING_LEASE_MS / 1000


async def test_without_redis_each_process_counts_for_itself_with_the_whole_of_the_limits(
    lines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    limits = both(lines, requests_per_minute=3, concurrent_requests=2)
    assert (await ask(limits[0])).status.exceeded is None
    own_redis.kill()
    permits = [await ask(limits[0]) for _ in range(3)]
    assert [permit.status.exceeded for permit in permits] == [None, "concurrent requests", "concurrent requests"]
    permits[0].release()
    assert [(await ask(limits[0])).status.exceeded for _ in range(2)] == [None, "concurrent requests"]
    assert (await ask(limits[1])).status.exceeded is None


async def test_tokens_that_are_used_without_redis_count_too(lines: list[RedisPipeline], own_redis: RedisServer) -> None:
    (limits, _) = both(lines, tokens_per_minute=100)
    own_redis.kill()
    assert (await ask(limits)).status.exceeded is None
    limits.subtract_tokens("acme", 150)
    assert (await ask(limits)).status.exceeded == "tokens"


async def test_a_redis_that_comes_back_empty_is_told_what_is_at_work(
    lines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    one, other = both(lines, concurrent_requests=2)
    telling = asyncio.ensure_future(one.run())
    held = [await ask(one), await ask(one)]
    own_redis.kill()
    assert (await ask(one)).status.exceeded is not None
    held.pop().release()
    (await ask(other)).release()  # so that it has detected it too
    await own_redis.start()
    for line in lines:
        await line.wait_until_up()
    await eventually(lambda: own_redis.command("EXISTS", KEY))
    assert [(await ask(other)).status.exceeded for _ in range(2)] == [None, "concurrent requests"]
    telling.cancel()


async def test_an_end_of_which_redis_did_not_hear_is_put_right(
    lines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    one, other = both(lines, concurrent_requests=2)
    telling = asyncio.ensure_future(one.run())
    held = [await ask(one), await ask(one)]
    own_redis.freeze()
    held.pop().release()
    await eventually(lambda: not lines[0].up)
    own_redis.thaw()
    for line in lines:
        await line.wait_until_up()

    async def comes_in() -> bool:
        return (await ask(other)).status.exceeded is None

    await eventually(comes_in)
    assert (await ask(other)).status.exceeded == "concurrent requests"
    telling.cancel()


async def test_a_redis_that_cannot_count_shuts_nobody_out(lines: list[RedisPipeline], own_redis: RedisServer) -> None:
    (limits, _) = both(lines, requests_per_minute=2)
    await own_redis.command("CONFIG", "SET", "maxmemory", "1")
    assert [(await ask(limits)).status.exceeded for _ in range(3)] == [None, None, "requests"]
