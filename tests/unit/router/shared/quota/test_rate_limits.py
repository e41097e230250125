"""Rate limits in Redis: the script counts as TenantUsage does, atomically, whatever its key contains.

tests/world/test_running_requests.py has what depends on the lease of running requests.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.core.cache.redis_keys import limit_key
from router.core.quota.rate_limit import Quota, TenantUsage, UsageUpdate
from router.errors import ApiError
from router.net.redis.pipeline import RedisPipeline
from router.settings import parse
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.quota.rate_limit_script import RUNNING_LEASE_MS, decode_status, update_command
from router.shared.quota.rate_limits import Reservation, TenantLimits, tenant_quotas
from tests.support.redis_process import RedisServer
from tests.support.router_server import router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = limit_key("acme")


@pytest_asyncio.fixture(loop_scope="session")
async def pipelines(own_redis: RedisServer) -> AsyncIterator[list[RedisPipeline]]:
    """The pipelines of two processes to one Redis."""
    await own_redis.start()
    opened = [open_pipeline(open_backend(own_redis.url, timeout=2.5), timeout=2.5, retry=0.02) for _ in range(2)]
    for pipeline in opened:
        await pipeline.start()
    yield opened
    for pipeline in opened:
        await pipeline.aclose()


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


def both(pipelines: list[RedisPipeline], **limits: int) -> list[TenantLimits]:
    return [limits_of(pipeline, {"acme": Quota(**limits), "free": Quota()}) for pipeline in pipelines]


def limits_of(pipeline: RedisPipeline, quotas: dict[str, Quota]) -> TenantLimits:
    limits = TenantLimits()
    limits.configure(pipeline, quotas)
    return limits


async def reserve(limits: TenantLimits) -> Reservation:
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
            needs_tokens=st.booleans(),
            released=st.integers(-2, 2),
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
async def test_the_script_counts_as_the_local_usage_does(
    redis: Any, limits: Quota, steps: list[tuple[int, UsageUpdate]]
) -> None:
    await redis.delete(KEY)
    usage, now = TenantUsage(), 1_800_000_000_000
    for gap, step in steps:
        now += gap
        in_redis = decode_status(await redis.execute_command(*update_command(KEY, limits, step, now)))
        assert in_redis == usage.apply(limits, step, now, RUNNING_LEASE_MS)


@pytest.mark.parametrize("value", ["", "no json", "[1]", '"x"', "{}", '{"at": 5}', '{"requests": 1, "working": 2}'])
async def test_an_invalid_value_at_the_key_is_replaced(redis: Any, value: str) -> None:
    limits = Quota(requests_per_minute=2)
    await redis.set(KEY, value)
    status = decode_status(
        await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    )
    assert (status.exceeded, status.requests_remaining) == (None, 1)
    await redis.delete(KEY)
    await redis.rpush(KEY, "a", "list")
    status = decode_status(
        await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    )
    assert (status.exceeded, status.requests_remaining) == (None, 1)


async def test_the_usage_expires_when_it_no_longer_matters(redis: Any) -> None:
    limits = Quota(tokens_per_minute=60, requests_per_minute=5)
    await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    assert 55 < await redis.ttl(KEY) <= 62
    await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", tokens_used=600)))
    assert 595 < await redis.ttl(KEY) <= 601, "a debt of ten minutes"


async def test_the_script_counts_by_the_clock_of_redis_in_milliseconds(redis: Any) -> None:
    async def now() -> int:
        seconds, microseconds = await redis.time()
        return int(seconds * 1000 + microseconds // 1000)

    before = await now()
    limits = Quota(concurrent_requests=1)
    await redis.execute_command(*update_command(KEY, limits, UsageUpdate(process="p", acquire=True)))
    usage = json.loads(await redis.get(KEY))
    assert before <= usage["at"] <= await now()
    assert usage["requests"] == [[usage["at"], 1]]
    assert usage["working"] == {"p": [1, usage["at"] + RUNNING_LEASE_MS]}


async def test_of_many_concurrent_requests_at_two_processes_exactly_the_limit_is_admitted(
    pipelines: list[RedisPipeline],
) -> None:
    limits = both(pipelines, requests_per_minute=37)
    permits = await asyncio.gather(*(reserve(limits[n % 2]) for n in range(200)))
    assert sum(permit.status.exceeded is None for permit in permits) == 37
    assert {permit.status.requests_remaining for permit in permits} == set(range(37))


async def test_a_tenant_without_limits_sends_nothing_to_redis(
    pipelines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    (limits, _) = both(pipelines, requests_per_minute=1)
    assert limits.has_limits("acme")
    assert not limits.has_limits("free")
    assert not limits.has_limits("unheard-of")
    limits.subtract_tokens("free", 10)
    assert await own_redis.command("KEYS", "*") == []


async def test_without_redis_each_process_counts_for_itself_with_the_full_limits(
    pipelines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    limits = both(pipelines, requests_per_minute=3, concurrent_requests=2)
    assert (await reserve(limits[0])).status.exceeded is None
    own_redis.kill()
    permits = [await reserve(limits[0]) for _ in range(3)]
    assert [permit.status.exceeded for permit in permits] == [None, "concurrent requests", "concurrent requests"]
    permits[0].release()
    assert [(await reserve(limits[0])).status.exceeded for _ in range(2)] == [None, "concurrent requests"]
    assert (await reserve(limits[1])).status.exceeded is None


async def test_tokens_used_without_redis_count_too(pipelines: list[RedisPipeline], own_redis: RedisServer) -> None:
    (limits, _) = both(pipelines, tokens_per_minute=100)
    own_redis.kill()
    assert (await reserve(limits)).status.exceeded is None
    limits.subtract_tokens("acme", 150)
    assert (await reserve(limits)).status.exceeded == "tokens"


async def test_a_redis_that_cannot_count_blocks_no_request(
    pipelines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    (limits, _) = both(pipelines, requests_per_minute=2)
    await own_redis.command("CONFIG", "SET", "maxmemory", "1")
    assert [(await reserve(limits)).status.exceeded for _ in range(3)] == [None, None, "requests"]


# -- other limits ----------------------------------------------------------------------------------


async def test_what_is_counted_without_redis_still_counts_with_other_limits(
    pipelines: list[RedisPipeline], own_redis: RedisServer
) -> None:
    (limits, _) = both(pipelines, requests_per_minute=3)
    own_redis.kill()
    assert [(await reserve(limits)).status.exceeded for _ in range(3)] == [None] * 3
    limits.configure(pipelines[0], {"acme": Quota(requests_per_minute=4)})
    assert [(await reserve(limits)).status.exceeded for _ in range(2)] == [None, "requests"]


async def test_requests_that_nobody_waits_for_leave_a_quarter_of_the_concurrency(
    pipelines: list[RedisPipeline],
) -> None:
    one, other = both(pipelines, concurrent_requests=4)
    spare = [await limits.reserve_spare("acme") for limits in (one, other, one, other)]
    assert [each.status.exceeded for each in spare] == [None, None, None, "concurrent requests"]
    assert (await reserve(other)).status.exceeded is None


async def test_requests_that_nobody_waits_for_leave_a_quarter_of_the_requests(pipelines: list[RedisPipeline]) -> None:
    one, other = both(pipelines, requests_per_minute=8)
    assert (await reserve(one)).status.exceeded is None
    spare = [await limits.reserve_spare("acme") for limits in (one, other) * 3]
    assert [each.status.exceeded for each in spare] == [None] * 5 + ["requests"]
    assert [(await reserve(one)).status.exceeded for _ in range(3)] == [None, None, "requests"]


async def test_requests_that_nobody_waits_for_leave_a_quarter_of_the_tokens(pipelines: list[RedisPipeline]) -> None:
    limits, _ = both(pipelines, tokens_per_minute=4000)
    (await limits.reserve_spare("acme")).release()
    limits.subtract_tokens("acme", 3500)
    refused = await limits.reserve_spare("acme")
    assert refused.status.exceeded == "tokens"
    assert 5000 < refused.status.retry_after_ms <= 7500, "until 500 more are there"
    with pytest.raises(ApiError):
        refused.raise_if_exceeded()
    refused.release()
    assert (await reserve(limits)).status.exceeded is None


async def test_a_tenant_with_a_limit_of_one_runs_its_batches_too(pipelines: list[RedisPipeline]) -> None:
    limits, _ = both(pipelines, requests_per_minute=1, concurrent_requests=1)
    assert (await limits.reserve_spare("acme")).status.exceeded is None
    assert (await limits.reserve_spare("free")).status.exceeded is None
