"""What processes exchange of a GPU whose engines take turns, with a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.core.cache.redis_keys import gpu_group_key
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.engines.gpu_groups import (
    LEASE,
    GpuGroups,
    GroupReport,
    GroupState,
    GroupView,
    MemberReport,
    Order,
    ProcessReport,
    Switch,
    decode_turns,
    read_turns_command,
    report_process_command,
)
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

REPORT = GroupReport(3, {"a": MemberReport(people=2, used_at=1.5), "b": MemberReport(asked_at=7.25)})
STATE = GroupState(version=4, phase="draining", sleeps=("a",), wakes="b", since=8.5, awake={"a": 2.0})


@pytest_asyncio.fixture(loop_scope="session")
async def pipeline(redis_server: RedisServer) -> AsyncIterator[RedisPipeline]:
    async with AsyncExitStack() as stack:
        pipeline = open_pipeline(open_backend(redis_server.url, timeout=2.5), timeout=2.5, retry=0.02)
        await pipeline.start()
        stack.push_async_callback(pipeline.aclose)
        yield pipeline


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:60]


async def test_the_first_process_decides_and_all_get_the_reports_of_the_others(
    pipeline: RedisPipeline, group: str
) -> None:
    one, two = GpuGroups(pipeline, "one"), GpuGroups(pipeline, "two")
    first = await one.exchange(group, REPORT)
    assert first == GroupView(True, None, None, b"", {"one": REPORT}, {})
    other = GroupReport()
    second = await two.exchange(group, other)
    assert second == GroupView(False, None, None, b"", {"one": REPORT, "two": other}, {})
    assert await one.set_state(group, STATE)
    assert (await two.exchange(group, REPORT)).state == STATE
    assert (await one.exchange(group, REPORT)).is_holder, "it renews its lease"


async def test_only_the_holder_writes_a_state(pipeline: RedisPipeline, group: str) -> None:
    one, two = GpuGroups(pipeline, "one"), GpuGroups(pipeline, "two")
    await one.exchange(group, REPORT)
    assert not await two.set_state(group, STATE)
    assert (await two.exchange(group, REPORT)).state is None


async def set_lease(redis: Any, group: str, process: str, seconds: float) -> None:
    """`seconds`: from now, by Redis' clock."""
    now, _ = await redis.time()
    await redis.hset(gpu_group_key(group), "lease", f"{process} {int(1000 * (now + seconds))}")


async def test_a_lease_that_has_ended_goes_to_the_next_one(pipeline: RedisPipeline, redis: Any, group: str) -> None:
    one, two = GpuGroups(pipeline, "one"), GpuGroups(pipeline, "two")
    await one.exchange(group, REPORT)
    await set_lease(redis, group, "one", -2)
    assert (await two.exchange(group, REPORT)).is_holder
    assert not (await one.exchange(group, REPORT)).is_holder
    assert not await one.set_state(group, STATE), "it had it before"


async def test_a_lease_of_before_the_clock_was_set_back_has_ended(
    pipeline: RedisPipeline, redis: Any, group: str
) -> None:
    await set_lease(redis, group, "one", LEASE + 3600)
    assert (await GpuGroups(pipeline, "two").exchange(group, REPORT)).is_holder


async def test_a_report_that_is_not_renewed_does_not_count(pipeline: RedisPipeline, redis: Any, group: str) -> None:
    key, (now, _) = gpu_group_key(group), await redis.time()
    text = msgspec.json.encode(REPORT).decode()
    await redis.hset(key, mapping={"process:old": f"{1000 * (now - 7)} {text}", "process:new": f"{1000 * now} {text}"})
    view = await GpuGroups(pipeline, "one").exchange(group, REPORT)
    assert view.reports == {"one": REPORT, "new": REPORT}
    assert sorted(await redis.hkeys(key)) == ["lease", "process:new", "process:one"]


async def test_what_another_program_has_written_does_not_count(pipeline: RedisPipeline, redis: Any, group: str) -> None:
    key, (now, _) = gpu_group_key(group), await redis.time()
    await redis.hset(
        key,
        mapping={
            "process:x": "?",
            "process:y": f"{1000 * now} [1]",
            "launcher:a": f"{1000 * now} 1",
            "state": "[]",
            "lease": "no lease at all",
            "order": "?",
        },
    )
    view = await GpuGroups(pipeline, "one").exchange(group, REPORT)
    assert view == GroupView(True, None, None, b"", {"one": REPORT}, {})
    await redis.delete(key)
    await redis.set(key, "a text")
    with pytest.raises(RedisDownError):
        await GpuGroups(pipeline, "one").exchange(group, REPORT)


async def test_a_launcher_reports_and_takes_no_lease(pipeline: RedisPipeline, group: str) -> None:
    report = ProcessReport(3, "failed", "it exited with status 1")
    await pipeline.execute(report_process_command(group, "a", report))
    view = await GpuGroups(pipeline, "one").exchange(group, REPORT)
    assert view == GroupView(True, None, None, b"", {"one": REPORT}, {"a": report})


async def test_an_order_is_given_to_who_decides_and_ends_with_the_state_that_carries_it_out(
    pipeline: RedisPipeline, group: str
) -> None:
    one, order = GpuGroups(pipeline, "one"), Order("b", sleeps=False)
    (reply,) = await pipeline.execute(read_turns_command(group))
    assert decode_turns(reply) == (None, False)
    assert not await one.give_order(group, order), "nobody decides"
    await one.exchange(group, REPORT)
    assert await one.give_order(group, order)
    view = await one.exchange(group, REPORT)
    assert view.order == order
    assert await one.set_state(group, STATE, b"another")
    (reply,) = await pipeline.execute(read_turns_command(group))
    assert decode_turns(reply) == (STATE, True)
    assert await one.set_state(group, STATE, view.order_text)
    assert (await one.exchange(group, REPORT)).order is None
    (reply,) = await pipeline.execute(read_turns_command(group))
    assert decode_turns(reply) == (STATE, False)


async def test_an_old_order_does_not_count(pipeline: RedisPipeline, redis: Any, group: str) -> None:
    key, (now, _) = gpu_group_key(group), await redis.time()
    await redis.hset(key, "order", f"{1000 * (now - 601)} " + '{"engine":"b","sleeps":true}')
    assert (await GpuGroups(pipeline, "one").exchange(group, REPORT)).order_text == b""
    assert not await redis.hexists(key, "order")


async def test_the_last_switches_are_kept(pipeline: RedisPipeline, redis: Any, group: str) -> None:
    records = GpuGroups(pipeline, "one")
    switches = [Switch(float(at), "b", ("a",), 1.5, error="" if at % 2 else "status 500") for at in range(502)]
    for switch in switches:
        records.add_switch(group, switch)
    assert await records.switches(group) == switches[:1:-1]


async def test_it_ends_with_the_last_process(pipeline: RedisPipeline, redis: Any, group: str) -> None:
    await asyncio.gather(*(GpuGroups(pipeline, str(number)).exchange(group, REPORT) for number in range(5)))
    assert 86_000 < await redis.ttl(gpu_group_key(group)) <= 86_400
