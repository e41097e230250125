"""The queue of the export: it never waits, counts what it drops, logs a failure once, and closes in time."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from router.telemetry.tracing import export_queue
from router.telemetry.tracing.export_queue import ExportQueue
from tests.support.waiting import TEST_TIMEOUT, eventually


class Exports:
    """What was exported; `accepts` is the collector's answer, and exports wait for `may_run`."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.dropped: Counter[str] = Counter()
        self.accepts = True
        self.error: Exception | None = None
        self.may_run = threading.Event()
        self.may_run.set()
        self.aborted = threading.Event()

    @property
    def items(self) -> list[object]:
        return [item for batch in self.batches for item in batch]

    def export(self, batch: Sequence[object]) -> bool:
        assert self.may_run.wait(15)
        if self.error is not None:
            raise self.error
        self.batches.append(list(batch))
        return self.accepts

    def has_dropped(self, count: int) -> bool:
        return self.dropped["export_failed"] == count

    def abort(self) -> None:
        self.aborted.set()
        self.may_run.set()

    def on_dropped(self, reason: str, count: int) -> None:
        self.dropped[reason] += count


OpenQueue = Callable[[Exports], ExportQueue]


@pytest.fixture
def open_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenQueue]:
    monkeypatch.setattr(export_queue, "CLOSE_TIMEOUT", TEST_TIMEOUT)
    opened: list[tuple[ExportQueue, Exports]] = []

    def make(exports: Exports) -> ExportQueue:
        queue = ExportQueue(
            exports.export, exports.abort, on_dropped=exports.on_dropped, collector="http://c:4318", interval=0.001
        )
        opened.append((queue, exports))
        return queue

    yield make
    for queue, exports in opened:
        exports.may_run.set()
        queue.close()


async def test_items_are_exported_once_in_their_order_and_in_bounded_batches(open_queue: OpenQueue) -> None:
    exports = Exports()
    exports.may_run.clear()
    queue = open_queue(exports)
    items: list[object] = list(range(2 * export_queue.MAX_BATCH + 1))
    for item in items:
        queue.put(item)
    exports.may_run.set()
    await eventually(lambda: len(exports.items) == len(items))
    assert exports.items == items
    assert max(map(len, exports.batches)) <= export_queue.MAX_BATCH
    assert not exports.dropped


async def test_a_full_queue_drops_what_comes_and_says_so_once(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(export_queue, "MAX_QUEUE", 10)
    exports = Exports()
    exports.may_run.clear()
    queue = open_queue(exports)
    started = time.perf_counter()
    for item in range(100):
        queue.put(item)
    assert time.perf_counter() - started < 10  # it did not wait for the export
    # The thread may have taken one batch before it stopped at the collector.
    assert 80 <= exports.dropped["queue_full"] <= 90
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    exports.may_run.set()
    await eventually(lambda: len(exports.items) + exports.dropped["queue_full"] == 100)


@pytest.mark.parametrize("error", [None, ValueError("no such thing")])
async def test_failures_are_logged_once_until_an_export_succeeds(
    open_queue: OpenQueue, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    caplog.set_level(logging.INFO, "roundhouse.tracing")
    exports = Exports()
    exports.accepts, exports.error = False, error
    queue = open_queue(exports)
    for number in range(1, 4):
        queue.put(number)
        await eventually(partial(exports.has_dropped, number))
    exports.accepts, exports.error = True, None
    queue.put("again")
    await eventually(lambda: "again" in exports.items)
    await eventually(lambda: any("accepts them again" in record.message for record in caplog.records))
    messages = [record.message for record in caplog.records]
    assert len([message for message in messages if "does not accept them" in message]) == 1


async def test_close_exports_what_is_left_and_later_items_are_dropped(open_queue: OpenQueue) -> None:
    exports = Exports()
    queue = open_queue(exports)
    queue.put("last")
    queue.close()
    assert exports.items == ["last"]
    queue.put("later")
    assert exports.dropped == {"queue_full": 1}


async def test_close_gives_up_on_a_collector_that_does_not_answer(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_queue, "CLOSE_TIMEOUT", 0.5)
    exports = Exports()
    exports.may_run.clear()
    queue = open_queue(exports)
    for item in range(export_queue.MAX_BATCH + 1):
        queue.put(item)
    started = time.perf_counter()
    queue.close()
    assert exports.aborted.is_set()
    assert time.perf_counter() - started < 10
    await eventually(lambda: exports.dropped["export_failed"] + len(exports.items) == export_queue.MAX_BATCH + 1)
    assert exports.dropped["export_failed"] >= 1
