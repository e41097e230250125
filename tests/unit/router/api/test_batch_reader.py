"""What administrators get of batches, and how often Redis is read for that."""

from typing import Any

import pytest

from router.api.admin.batches import MAX_OPEN, NO_BATCHES, BatchReader
from router.core.batches.batch_object import BatchObject, RequestCounts
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError
from router.shared.batches.batch_records import BatchName


class Records:
    """In place of Redis. `asked`: the batches of each look at their progress."""

    def __init__(self) -> None:
        self.batches: dict[BatchName, BatchObject] = {}
        self.ended_names: list[BatchName] = []
        self.asked: list[list[BatchName]] = []
        self.looks = 0
        self.is_down = False

    def set(self, name: BatchName, done: int, status: Any = "in_progress", **fields: Any) -> None:
        self.batches[name] = BatchObject(
            id=name.id, endpoint="/v1/embeddings", input_file_id="file-1", completion_window="24h", status=status,
            created_at=500, request_counts=RequestCounts(1000, done), **fields,
        )  # fmt: skip

    async def open(self) -> list[BatchName]:
        self.looks += 1
        if self.is_down:
            raise RedisDownError
        return [name for name, batch in self.batches.items() if batch.status in ("validating", "in_progress")]

    async def ended(self) -> list[BatchName]:
        return self.ended_names

    async def progress(self, names: list[BatchName]) -> list[tuple[BatchName, BatchObject]]:
        self.asked.append(names)
        return [(name, self.batches[name]) for name in names if name in self.batches]


ONE, TWO = BatchName("acme", "batch_1"), BatchName("beta", "batch_2")


class Setting:
    now = 1000.0

    def __init__(self) -> None:
        self.records = Records()
        self.reader = BatchReader(self.records, lambda: self.now, lambda: self.now)  # type: ignore[arg-type]

    async def rates(self) -> list[float | None]:
        return [row.lines_per_second for row in (await self.reader.read()).open]


async def test_the_rate_is_that_of_the_looks_and_of_the_time_since_the_start_before() -> None:
    setting = Setting()
    setting.records.set(ONE, 300, in_progress_at=700)
    setting.records.set(TWO, 50, in_progress_at=990)
    assert await setting.rates() == [None, 5]
    setting.now += 10
    setting.records.set(ONE, 320, in_progress_at=700)
    setting.records.set(TWO, 60, in_progress_at=990)
    assert await setting.rates() == [2, 3]
    assert [row.seconds_left for row in (await setting.reader.read()).open] == [340, 313.333]


async def test_a_batch_that_was_seen_before_its_lines_began_has_a_rate_at_once() -> None:
    setting = Setting()
    setting.records.set(ONE, 0, "validating")
    assert await setting.rates() == [None]
    setting.now += 5
    setting.records.set(ONE, 12, in_progress_at=1001)
    assert await setting.rates() == [3]


async def test_redis_is_read_once_a_second_however_many_ask() -> None:
    setting = Setting()
    setting.records.set(ONE, 1)
    for _ in range(5):
        await setting.reader.read()
    assert setting.records.looks == 1
    setting.now += 1
    await setting.reader.read()
    assert setting.records.looks == 2


async def test_a_batch_that_has_ended_is_read_once() -> None:
    setting = Setting()
    setting.records.set(ONE, 1)
    setting.records.set(TWO, 9, "cancelled", cancelled_at=900)
    setting.records.ended_names = [TWO]
    for _ in range(3):
        document = await setting.reader.read()
        assert [row.id for row in document.ended] == [TWO.id]
        setting.now += 5
    assert setting.records.asked == [[ONE], [TWO], [ONE], [], [ONE], []]


async def test_the_oldest_open_batches_have_rows_and_the_others_a_number() -> None:
    setting = Setting()
    names = [BatchName("acme", f"batch_{number}") for number in range(MAX_OPEN + 3)]
    for name in names:
        setting.records.set(name, 0)
    document = await setting.reader.read()
    assert (document.open_batches, [row.id for row in document.open]) == (23, [name.id for name in names[:20]])


async def test_while_redis_is_down_nothing_is_known() -> None:
    setting = Setting()
    setting.records.is_down = True
    with pytest.raises(RedisBackendError):
        await setting.reader.read()


async def test_without_batches_redis_is_not_read() -> None:
    assert await BatchReader(None, lambda: 0.0, lambda: 0.0).read() == NO_BATCHES
