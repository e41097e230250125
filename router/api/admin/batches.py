"""The batches of all tenants: /admin/batches, and the event of the dashboard."""

from collections.abc import Callable
from typing import Final

from router.core.batches.batch_object import BatchObject
from router.core.batches.batch_overview import BatchesDocument, BatchRow, batch_row
from router.core.batches.progress_rate import RATE_SPAN, ProgressRate
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError
from router.shared.batches.batch_records import BatchName, BatchRecords

MAX_OPEN: Final = 20
"""Open batches that have a row, the oldest ones."""

_MIN_INTERVAL: Final = 1.0
"""Seconds between two looks into Redis, however many ask."""

NO_BATCHES: Final = BatchesDocument(enabled=False)


class BatchReader:
    """- The rate of a batch is that of this process' looks: None at the first one, unless its lines have just begun.
    - Raises RedisBackendError while Redis is down.
    """

    def __init__(
        self, records: BatchRecords | None, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        """`records`: None where batches are turned off. `clock`: Redis' time, in seconds since the epoch."""
        self._records = records
        self._clock = clock
        self._monotonic = monotonic
        self._read_at = -_MIN_INTERVAL
        self._document = NO_BATCHES
        self._rates: dict[BatchName, ProgressRate] = {}
        self._ended: dict[BatchName, BatchRow] = {}

    async def read(self) -> BatchesDocument:
        if self._records is None:
            return NO_BATCHES
        now = self._monotonic()
        if now < self._read_at + _MIN_INTERVAL and self._document.enabled:
            return self._document
        try:
            document = await self._read(self._records)
        except RedisDownError:
            raise RedisBackendError("it is down") from None
        self._read_at, self._document = now, document
        return document

    async def _read(self, records: BatchRecords) -> BatchesDocument:
        names = await records.open()
        found = await records.progress(names[:MAX_OPEN])
        at, now = self._monotonic(), self._clock()
        # A rate begins with the lines, not with the first look.
        running = {name: batch for name, batch in found if batch.status == "in_progress"}
        self._rates = {name: self._rates.get(name) or _new_rate(batch, at, now) for name, batch in running.items()}
        for name, batch in running.items():
            counts = batch.request_counts
            self._rates[name].look(at, batch.status, counts.completed + counts.failed, paused=batch.paused)
        return BatchesDocument(
            enabled=True,
            now=round(now, 3),
            open_batches=len(names),
            open=tuple(batch_row(name.tenant, batch, self._rates.get(name)) for name, batch in found),
            ended=await self._read_ended(records),
        )

    async def _read_ended(self, records: BatchRecords) -> tuple[BatchRow, ...]:
        """They do not change any more, so each is read once."""
        names = await records.ended()
        known = {name: row for name, row in self._ended.items() if name in names}
        for name, batch in await records.progress([name for name in names if name not in known]):
            known[name] = batch_row(name.tenant, batch)
        self._ended = known
        return tuple(known[name] for name in names if name in known)


def _new_rate(batch: BatchObject, at: float, now: float) -> ProgressRate:
    """`at`, `now`: the time by the clock of the looks, and by that of the batch, whose lines may have just begun."""
    rate = ProgressRate()
    if batch.in_progress_at is not None and 0 <= now - batch.in_progress_at <= RATE_SPAN:
        rate.look(at - (now - batch.in_progress_at), batch.status, 0, paused=batch.paused)
    return rate
