"""A change is recorded whether it is done, fails half-way or is cancelled, and a cancelling task waits for that."""

import asyncio

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.shared.audit.changes import Change, bounded_details, entries_purged, half_done, purge_stopped, result_text
from router.shared.audit.recorded import recorded, uninterrupted

DRAIN = Change("drain", "e1")


class Recorder:
    """Records when it is allowed to."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.asked = asyncio.Event()
        self.allowed = asyncio.Event()

    async def record(self, change: Change) -> None:
        self.asked.set()
        await self.allowed.wait()
        self.changes.append(change)


async def work(recorder: Recorder, error: BaseException | None = None, hangs: bool = False) -> str:
    async def operation() -> str:
        if hangs:
            await asyncio.Event().wait()
        if error is not None:
            raise error
        return "done"

    return await recorded(
        operation(), recorder.record, lambda result: [half_done(DRAIN, ValueError(result))],
        lambda stop: [half_done(DRAIN, stop)],
    )  # fmt: skip


async def test_what_is_done_is_recorded_with_its_result() -> None:
    recorder = Recorder()
    recorder.allowed.set()
    assert await work(recorder) == "done"
    assert [change.details for change in recorder.changes] == [{"result": "failed: done"}]


async def test_what_fails_is_recorded_and_raised() -> None:
    recorder = Recorder()
    recorder.allowed.set()
    with pytest.raises(ValueError, match="no room"):
        await work(recorder, ValueError("no room"))
    assert [change.details for change in recorder.changes] == [{"result": "failed: no room"}]


async def test_what_is_cancelled_is_recorded_however_often_it_is_cancelled() -> None:
    recorder = Recorder()
    task = asyncio.ensure_future(work(recorder, hangs=True))
    await asyncio.sleep(0)
    task.cancel()
    await recorder.asked.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    recorder.allowed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [change.details for change in recorder.changes] == [{"result": "interrupted"}]


async def test_a_cancellation_during_the_record_of_what_is_done_does_not_lose_it() -> None:
    recorder = Recorder()
    task = asyncio.ensure_future(work(recorder))
    await recorder.asked.wait()
    task.cancel()
    await asyncio.sleep(0)
    recorder.allowed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(recorder.changes) == 1


async def test_a_failure_of_uninterrupted_work_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        await uninterrupted(fail())


@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyboardInterrupt(), "interrupted"), (SystemExit(143), "interrupted"), (asyncio.CancelledError(), "interrupted"),
     (ValueError("no room"), "failed: no room"), (ValueError(), "failed: ValueError")],
)  # fmt: skip
def test_the_result_says_how_it_ended(error: BaseException, text: str) -> None:
    assert result_text(error) == text


def test_a_purge_by_words_says_the_length_of_the_text_and_not_the_text() -> None:
    scope = EntryFilter(all=True)
    done = entries_purged(scope, 2, 1, recorded=True, text="Miss Marple")
    assert done.details == {"text_length": 11, "entries": 2, "generations": 1, "result": "done"}
    stopped = purge_stopped(scope, 2, ValueError("x" * 300), text="Miss Marple")
    assert stopped.details["text_length"] == 11
    assert len(str(bounded_details(stopped.details)["result"])) == 200
