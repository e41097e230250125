"""Batches in Redis: each part of the work has one holder, and counts once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.core.batches.batch_object import BatchError, BatchErrors, RequestCounts
from router.core.cache.redis_keys import OPEN_BATCHES_KEY
from router.net.redis.pipeline import RedisDownError
from router.shared.batches.batch_records import (
    KEPT_AFTER_END,
    LEASE,
    MAX_ENDED,
    BatchName,
    BatchNotFoundError,
    BatchRecords,
    BatchSpec,
    Claim,
    Stage,
    TooManyBatchesError,
)
from router.shared.connection.redis import open_backend, open_pipeline
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = BatchName("acme", "batch_1")
SPEC = BatchSpec(
    endpoint="/v1/embeddings", input_file_id="file-1", completion_window="24h", created_at=1000, expires_at=87_400
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture(loop_scope="session")
async def records(redis_server: RedisServer, redis: Any, clock: Clock) -> AsyncIterator[BatchRecords]:
    pipeline = open_pipeline(open_backend(redis_server.url, timeout=2), timeout=2, retry=0.05)
    await pipeline.start()
    yield BatchRecords(pipeline, clock=clock)
    await pipeline.aclose()


async def begun(records: BatchRecords, ranges: int = 2) -> None:
    await records.create(NAME, SPEC, max_open=20)
    claim = await records.claim(NAME, "check")
    assert claim == Claim("validate", "check")
    assert await records.begin(NAME, "check", 100 * ranges, ranges)


async def claims(records: BatchRecords, count: int) -> list[tuple[str, int]]:
    found = [await records.claim(NAME, f"t{number}") for number in range(count)]
    return [(claim.what, claim.range) for claim in found]


async def test_a_batch_goes_from_its_check_to_its_end(records: BatchRecords, clock: Clock) -> None:
    await begun(records)
    assert await records.open() == [NAME]
    assert await claims(records, 3) == [("range", 0), ("range", 1), ("wait", -1)]
    one, two = Claim("range", "t0", 0), Claim("range", "t1", 1)
    assert await records.renew_range(NAME, two, RequestCounts(0, 7, 1)) == 1
    assert (await records.find(NAME)).shown.request_counts == RequestCounts(200, 7, 1)
    assert await records.finish_range(NAME, one, RequestCounts(0, 99, 1), done=True)
    assert await claims(records, 1) == [("wait", -1)]
    assert await records.finish_range(NAME, two, RequestCounts(0, 98, 2), done=True)
    claim = await records.claim(NAME, "end")
    assert claim == Claim("finalize", "end", ends_as="completed")
    record = await records.find(NAME)
    assert (record.shown.status, record.tokens) == ("finalizing", {0: "t0", 1: "t1"})
    clock.now += 5
    assert await records.end(NAME, "end", "completed", RequestCounts(200, 197, 3), "file-2", "file-3")
    shown = (await records.find(NAME)).shown
    assert (shown.status, shown.completed_at, shown.output_file_id, shown.error_file_id) == (
        "completed", 1005, "file-2", "file-3",
    )  # fmt: skip
    assert shown.request_counts == RequestCounts(200, 197, 3)
    assert await records.open() == []
    assert (await records.claim(NAME, "x")).what == "ended"


async def test_administrators_see_how_far_batches_of_all_tenants_are(records: BatchRecords) -> None:
    other, lost = BatchName("beta", "batch_2"), BatchName("beta", "batch_3")
    await begun(records, 3)
    await records.create(other, SPEC, max_open=20)
    await records.set_waiting(NAME, "The engines are busy.")
    await records.pause(other, paused=True)
    assert await records.stages([NAME, lost, other]) == [
        Stage("in_progress", is_paused=False, is_waiting=True, is_limited=False),
        Stage("validating", is_paused=True, is_waiting=False, is_limited=False),
    ]
    assert await claims(records, 2) == [("range", 0), ("range", 1)]
    await records.finish_range(NAME, Claim("range", "t0", 0), RequestCounts(0, 98, 2, 40), done=True)
    await records.renew_range(NAME, Claim("range", "t1", 1), RequestCounts(0, 7, 1, 3))
    found = await records.progress([NAME, lost, other])
    assert [name for name, _ in found] == [NAME, other]
    assert found == [(name, (await records.find(name)).shown) for name in (NAME, other)]
    assert found[0][1].request_counts == RequestCounts(300, 105, 3, 43)


async def test_the_last_batches_of_all_tenants_that_ended_are_known(records: BatchRecords, clock: Clock) -> None:
    names = [BatchName(f"t{number % 3}", f"batch_{number}") for number in range(MAX_ENDED + 3)]
    for name in names:
        clock.now += 1
        await records.create(name, SPEC, max_open=100)
        await records.claim(name, "check")
        assert await records.ended() == names[: names.index(name)][::-1][:MAX_ENDED]
        assert await records.fail(name, "check", BatchErrors(()))
    assert await records.ended() == names[:2:-1]


async def test_a_batch_that_cannot_begin_has_failed_and_says_why(records: BatchRecords) -> None:
    await records.create(NAME, SPEC, max_open=20)
    await records.claim(NAME, "check")
    errors = BatchErrors((BatchError("invalid_json_line", "Words.", 3),))
    assert await records.fail(NAME, "check", errors)
    shown = (await records.find(NAME)).shown
    assert (shown.status, shown.errors, shown.failed_at) == ("failed", errors, 1000)
    assert await records.open() == []


async def test_who_loses_its_lease_counts_no_more(records: BatchRecords, clock: Clock) -> None:
    await begun(records, 1)
    assert await claims(records, 2) == [("range", 0), ("wait", -1)]
    late = Claim("range", "t0", 0)
    clock.now += LEASE - 1
    assert await records.renew_range(NAME, late, RequestCounts(0, 1, 0)) == 1
    clock.now += LEASE - 1
    assert (await records.claim(NAME, "other")).what == "wait"
    clock.now += 1.1
    assert await records.claim(NAME, "other") == Claim("range", "other", 0)
    assert await records.renew_range(NAME, late, RequestCounts(0, 50, 0)) == 0
    assert not await records.finish_range(NAME, late, RequestCounts(0, 100, 0), done=True)
    assert await records.finish_range(NAME, Claim("range", "other", 0), RequestCounts(0, 90, 10), done=True)
    assert not await records.finish_range(NAME, Claim("range", "other", 0), RequestCounts(0, 90, 10), done=True), "once"
    assert (await records.find(NAME)).shown.request_counts == RequestCounts(100, 90, 10)


async def test_the_check_and_the_end_are_taken_over_too(records: BatchRecords, clock: Clock) -> None:
    await records.create(NAME, SPEC, max_open=20)
    assert (await records.claim(NAME, "a")).what == "validate"
    assert (await records.claim(NAME, "b")).what == "wait"
    assert await records.renew_job(NAME, "a")
    clock.now += LEASE + 1
    assert (await records.claim(NAME, "b")).what == "validate"
    assert not await records.renew_job(NAME, "a")
    assert not await records.begin(NAME, "a", 7, 1)
    assert await records.begin(NAME, "b", 0, 0)
    assert (await records.claim(NAME, "c")).what == "finalize"
    clock.now += LEASE + 1
    assert (await records.claim(NAME, "d")).what == "finalize"
    assert not await records.end(NAME, "c", "completed", RequestCounts(), "", "")
    assert await records.end(NAME, "d", "completed", RequestCounts(), "", "")


async def test_a_range_that_is_given_back_is_free_at_once(records: BatchRecords) -> None:
    await begun(records, 1)
    await records.claim(NAME, "a")
    assert await records.finish_range(NAME, Claim("range", "a", 0), RequestCounts(0, 3, 1), done=False)
    assert (await records.find(NAME)).shown.request_counts == RequestCounts(100, 3, 1)
    assert await records.claim(NAME, "b") == Claim("range", "b", 0, given_back="a")


async def test_a_cancelled_batch_ends_once_nobody_works_on_it(records: BatchRecords) -> None:
    await begun(records)
    held = await records.claim(NAME, "a")
    assert await records.cancel(NAME) == "in_progress"
    assert await records.renew_range(NAME, held, RequestCounts(0, 5, 0)) == 0
    assert (await records.claim(NAME, "b")).what == "wait"
    assert (await records.find(NAME)).shown.status == "cancelling"
    await records.finish_range(NAME, held, RequestCounts(0, 5, 0), done=False)
    assert await records.claim(NAME, "b") == Claim("finalize", "b", ends_as="cancelled")
    assert await records.end(NAME, "b", "cancelled", RequestCounts(5, 5, 0), "file-2", "")
    assert (await records.find(NAME)).shown.cancelled_at == 1000
    assert await records.cancel(NAME) == "cancelled", "it stays as it has ended"


async def test_a_batch_that_is_cancelled_while_it_is_checked_does_not_begin(records: BatchRecords) -> None:
    await records.create(NAME, SPEC, max_open=20)
    await records.claim(NAME, "a")
    await records.cancel(NAME)
    assert await records.begin(NAME, "a", 100, 1)
    assert (await records.claim(NAME, "b")) == Claim("finalize", "b", ends_as="cancelled")


async def test_a_batch_ends_with_its_window(records: BatchRecords, clock: Clock) -> None:
    await begun(records)
    held = await records.claim(NAME, "a")
    clock.now = float(SPEC.expires_at)
    assert (await records.claim(NAME, "b")) == Claim("finalize", "b", ends_as="expired"), "the lease of a is over"
    assert await records.renew_range(NAME, held, RequestCounts(0, 5, 0)) == 0


async def test_a_paused_batch_begins_nothing(records: BatchRecords) -> None:
    await begun(records)
    held = await records.claim(NAME, "a")
    assert await records.pause(NAME, paused=True) == "in_progress"
    assert (await records.find(NAME)).shown.paused
    assert await records.renew_range(NAME, held, RequestCounts(0, 1, 0)) == 2
    assert (await records.claim(NAME, "b")).what == "wait"
    await records.pause(NAME, paused=False)
    assert (await records.claim(NAME, "b")).what == "range"


async def test_ranges_are_found_among_thousands(records: BatchRecords) -> None:
    await begun(records, 1100)
    for number in range(1100):
        claim = await records.claim(NAME, "t")
        assert claim.range == number
        await records.finish_range(NAME, claim, RequestCounts(0, 1, 0), done=True)
    assert (await records.claim(NAME, "end")).what == "finalize"


async def test_each_part_has_one_holder_whoever_asks_at_once(records: BatchRecords) -> None:
    await begun(records, 5)
    found = await asyncio.gather(*[records.claim(NAME, f"t{number}") for number in range(8)])
    assert sorted(claim.range for claim in found) == [-1, -1, -1, 0, 1, 2, 3, 4]


async def test_a_tenant_finds_its_own_batches_alone(records: BatchRecords, redis: Any) -> None:
    await begun(records)
    other = BatchName("other", NAME.id)
    for call in (records.find(other), records.cancel(other), records.pause(other, paused=True)):
        with pytest.raises(BatchNotFoundError):
            await call
    assert (await records.claim(other, "x")).what == "ended"
    assert await records.ids("other") == []
    assert await records.ids("acme") == [NAME.id]
    assert [each.id for each in await records.find_all("acme", [NAME.id, "batch_gone"])] == [NAME.id]
    await redis.delete(NAME.key)
    assert await records.find_all("acme", [NAME.id]) == []
    assert await records.ids("acme") == []
    assert (await records.claim(NAME, "x")).what == "ended"
    assert await redis.zcard(OPEN_BATCHES_KEY) == 0


async def test_a_tenant_has_no_more_open_batches_than_it_may_however_many_it_creates_at_once(
    records: BatchRecords, redis: Any
) -> None:
    await records.create(BatchName("acme2", "batch_0"), SPEC, max_open=1)
    names = [BatchName("acme", f"batch_{number}") for number in range(12)]
    results = await asyncio.gather(*[records.create(name, SPEC, max_open=5) for name in names], return_exceptions=True)
    assert sum(isinstance(result, TooManyBatchesError) for result in results) == 7
    admitted = {name for name, result in zip(names, results, strict=True) if result is None}
    assert {name for name in await records.open() if name.tenant == "acme"} == admitted
    assert set(await records.ids("acme")) == {name.id for name in admitted}
    for name in names:
        assert await redis.exists(name.key) == (name in admitted)


async def test_a_batch_that_nobody_ends_is_forgotten(records: BatchRecords, redis: Any) -> None:
    await records.create(NAME, SPEC, max_open=20)
    await records.remove_lost()
    assert await records.open() == [NAME]
    window = SPEC.expires_at - SPEC.created_at
    assert window + KEPT_AFTER_END - 60 < await redis.ttl(NAME.key) <= window + KEPT_AFTER_END
    await redis.delete(NAME.key)  # as its expiry does
    await records.set_waiting(NAME, "Words.")
    assert not await redis.exists(NAME.key)
    await records.remove_lost()
    assert await records.open() == []


async def test_of_more_batches_than_are_listed_the_oldest_are_not(
    records: BatchRecords, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.shared.batches.batch_records.MAX_LISTED", 3)
    for number in range(5):
        clock.now += 0.01
        await records.create(BatchName("acme", f"batch_{9 - number}"), SPEC, max_open=20)
    assert await records.ids("acme") == ["batch_5", "batch_6", "batch_7"], "the newest first, also of one second"


async def test_a_range_whose_holder_has_died_is_not_given_back(records: BatchRecords, clock: Clock) -> None:
    await begun(records, 1)
    await records.claim(NAME, "a")
    clock.now += LEASE + 1
    assert await records.claim(NAME, "b") == Claim("range", "b", 0)


async def test_a_batch_expires_also_while_its_ranges_are_held(records: BatchRecords, clock: Clock) -> None:
    await begun(records, 1)
    claim = await records.claim(NAME, "a")
    clock.now = SPEC.expires_at - 1
    assert await records.renew_range(NAME, claim, RequestCounts()) == 1
    clock.now = SPEC.expires_at
    assert await records.renew_range(NAME, claim, RequestCounts()) == 0
    await records.finish_range(NAME, claim, RequestCounts(), done=False)
    assert await records.claim(NAME, "end") == Claim("finalize", "end", ends_as="expired")


async def test_a_batch_that_is_paused_before_its_check_expires(records: BatchRecords, clock: Clock) -> None:
    await records.create(NAME, SPEC, max_open=20)
    await records.pause(NAME, paused=True)
    assert await claims(records, 1) == [("wait", -1)]
    clock.now = SPEC.expires_at
    assert (await records.claim(NAME, "check")).what == "validate"
    assert await records.begin(NAME, "check", 100, 1)
    assert (await records.claim(NAME, "end")).ends_as == "expired"


@pytest.mark.parametrize("what", ["validate", "range"])
async def test_a_lease_from_before_redis_clock_was_set_back_does_not_last(
    records: BatchRecords, clock: Clock, what: str
) -> None:
    clock.now = 80_000.0
    if what == "range":
        await begun(records, 1)
    else:
        await records.create(NAME, SPEC, max_open=20)
    await records.claim(NAME, "dead")
    clock.now = 1000.0
    assert (await records.claim(NAME, "other")).what == what


async def test_a_batch_that_redis_has_lost_does_not_come_back(records: BatchRecords, redis: Any) -> None:
    await begun(records, 1)
    await redis.delete(NAME.key)
    await records.set_waiting(NAME, "Words.")
    assert not await redis.exists(NAME.key)


async def test_the_log_says_what_redis_refuses(
    records: BatchRecords, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.set(NAME.key, "no hash")
    with pytest.raises(RedisDownError):
        await records.find(NAME)
    assert "Redis refuses a command of batches: WRONGTYPE" in caplog.text


async def test_progress_goes_on_from_what_the_last_holder_has_counted(records: BatchRecords, clock: Clock) -> None:
    await begun(records, 1)
    await records.renew_range(NAME, await records.claim(NAME, "a"), RequestCounts(0, 7, 2, 1))
    clock.now += LEASE + 1
    claim = await records.claim(NAME, "b")
    assert (await records.find(NAME)).shown.request_counts == RequestCounts(100, 7, 2, 1)
    await records.finish_range(NAME, claim, None, done=False)
    assert (await records.find(NAME)).shown.request_counts == RequestCounts(100, 7, 2, 1)
