"""How many batches are open, by what happens to them."""

import asyncio
from collections.abc import Mapping
from typing import Any

from router.flow.batches.open_batches import OpenBatches
from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.batches.batch_records import BatchName, Stage
from tests.support.virtual_time import on_virtual_time

STAGES = {
    BatchName("acme", "batch_1"): Stage("in_progress", is_paused=False, is_waiting=False, is_limited=False),
    BatchName("acme", "batch_2"): Stage("in_progress", is_paused=False, is_waiting=True, is_limited=False),
    BatchName("beta", "batch_3"): Stage("in_progress", is_paused=True, is_waiting=False, is_limited=False),
    BatchName("gone", "batch_4"): Stage("in_progress", is_paused=False, is_waiting=False, is_limited=False),
}


class Records:
    is_down = False

    async def open(self) -> list[BatchName]:
        if self.is_down:
            raise RedisDownError
        return list(STAGES)

    async def stages(self, names: list[BatchName]) -> list[Stage]:
        return [STAGES[name] for name in names]


@on_virtual_time
async def test_they_are_counted_every_15_seconds_and_unknown_while_redis_is_down() -> None:
    records, seen = Records(), []
    lines_may_run = True

    def set_open(batches: Mapping[Any, int] | None) -> None:
        seen.append(dict(batches) if batches is not None else None)

    batches = OpenBatches(records, ["acme", "beta"], lambda: lines_may_run, set_open)  # type: ignore[arg-type]
    task = asyncio.create_task(batches.run())
    await asyncio.sleep(1)
    assert seen == [{"running": 1, "waiting": 1, "paused": 1}]
    lines_may_run = False
    await asyncio.sleep(15)
    assert seen[1:] == [{"outside_hours": 2, "paused": 1}]
    records.is_down = True
    await asyncio.sleep(15)
    assert seen[2:] == [None]
    records.is_down = False
    await asyncio.sleep(15)
    await cancel_and_wait(task)
    assert seen[3:] == [{"outside_hours": 2, "paused": 1}, None]
