"""A deadline ends what takes too long, is never mistaken for another cancellation, and costs no timer a chunk."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from skipping import SkippingLoop, in_skipped_time, run

from router.flow.deadline import Deadline


async def after(seconds: float, value: str = "x") -> str:
    return await asyncio.sleep(seconds, value)


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def times_out(deadline: Deadline, for_it: Awaitable[Any], seconds: float) -> None:
    with pytest.raises(TimeoutError):
        await deadline.wait(for_it, seconds)
    assert cancellations() == 0


@in_skipped_time
async def test_what_comes_in_time_is_given_back(loop: SkippingLoop) -> None:
    deadline = Deadline()
    assert await deadline.wait(after(4.9, "here"), 5) == "here"
    assert loop.now == 1004.9


@in_skipped_time
async def test_what_does_not_come_in_time_is_given_up_at_that_moment(loop: SkippingLoop) -> None:
    ended = False

    async def slow() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(100)
        finally:
            ended = True

    await times_out(Deadline(), slow(), 5)
    assert loop.now == 1005
    assert ended


@in_skipped_time
async def test_each_wait_has_its_own_limit(loop: SkippingLoop) -> None:
    deadline = Deadline()
    for _ in range(4):
        await deadline.wait(after(4), 5)
    assert loop.now == 1016
    await times_out(deadline, after(6), 5)
    assert loop.now == 1021
    await deadline.wait(after(4), 5)
    deadline.close()


@pytest.mark.parametrize(("first", "then"), [(30, 2), (2, 30), (inf, 2)])
def test_a_wait_may_be_longer_or_shorter_than_the_one_before(first: float, then: float) -> None:
    async def test(loop: SkippingLoop) -> None:
        deadline = Deadline()
        await deadline.wait(after(1), first)
        await times_out(deadline, after(100), then)
        assert loop.now == 1001 + then

    run(test)


@in_skipped_time
async def test_nothing_is_waited_for_beyond_the_last_moment_of_all(loop: SkippingLoop) -> None:
    deadline = Deadline(total=10)
    await deadline.wait(after(4), 5)
    await deadline.wait(after(4), 5)
    await times_out(deadline, after(4), 5)
    assert loop.now == 1010
    await times_out(deadline, after(1), 5)
    assert loop.now == 1010


@in_skipped_time
async def test_no_time_left_is_enough_for_what_is_there_already(loop: SkippingLoop) -> None:
    async def ready() -> str:
        return "here"

    deadline = Deadline()
    assert await deadline.wait(ready(), -1) == "here"
    await times_out(deadline, after(1), 0)
    assert loop.now == 1000


@in_skipped_time
async def test_many_chunks_cost_few_timers(loop: SkippingLoop) -> None:
    deadline = Deadline(total=1000)
    chunk = loop.create_future()
    before = len(loop.timers)
    for _ in range(500):
        loop.call_soon(chunk.set_result, None)
        await deadline.wait(chunk, 15)
        chunk = loop.create_future()
    assert len(loop.timers) - before == 1


@in_skipped_time
async def test_a_closed_deadline_leaves_no_timer_behind(loop: SkippingLoop) -> None:
    deadline = Deadline(total=100)
    await deadline.wait(after(1), 50)
    assert loop.running_timers == 1
    deadline.close()
    assert loop.running_timers == 0
    deadline.close()
    await deadline.wait(after(1), 50)  # and can be used again
    deadline.close()
    assert loop.running_timers == 0


@in_skipped_time
async def test_no_timer_rings_between_two_waits(loop: SkippingLoop) -> None:
    deadline = Deadline()
    await deadline.wait(after(1), 5)
    await asyncio.sleep(60)
    assert cancellations() == 0
    assert await deadline.wait(after(1), 5) == "x"


@in_skipped_time
async def test_an_error_passes_and_leaves_the_deadline_usable(loop: SkippingLoop) -> None:
    async def fails() -> None:
        raise LookupError

    deadline = Deadline()
    with pytest.raises(LookupError):
        await deadline.wait(fails(), 5)
    await times_out(deadline, after(6), 5)
    assert loop.now == 1005


@in_skipped_time
async def test_one_task_may_go_on_where_another_has_waited(loop: SkippingLoop) -> None:
    deadline = Deadline()
    await asyncio.create_task(deadline.wait(after(1), 5))
    await times_out(deadline, after(10), 5)
    await asyncio.create_task(times_out(deadline, after(10), 5))
    assert loop.now == 1011


# Other cancellations


@in_skipped_time
async def test_a_cancellation_is_not_a_timeout(loop: SkippingLoop) -> None:
    task = asyncio.create_task(Deadline().wait(after(100), 50))
    loop.call_later(3, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert loop.now == 1003


@pytest.mark.parametrize("first", ["the task", "the deadline"])
def test_a_cancellation_at_the_very_moment_of_the_timeout_is_not_lost(first: str) -> None:
    async def test(loop: SkippingLoop) -> None:
        deadline = Deadline()
        task: asyncio.Task[str] | None = None

        def cancel() -> None:
            assert task is not None
            assert task.cancel()

        if first == "the task":
            loop.call_at(1005, cancel)
        task = asyncio.create_task(deadline.wait(after(100), 5))
        await asyncio.sleep(0)
        if first == "the deadline":
            loop.call_at(1005, cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1
        assert loop.now == 1005

    run(test)


@in_skipped_time
async def test_what_comes_at_the_very_moment_of_the_timeout_leaves_no_cancellation_behind(loop: SkippingLoop) -> None:
    for order in (1, -1):
        deadline = Deadline()
        future: asyncio.Future[str] = loop.create_future()
        set_them: list[Callable[[], object]] = [
            lambda future=future, at=loop.now + 5: loop.call_at(at, future.set_result, "here"),  # type: ignore[misc]
            lambda deadline=deadline: waiting(deadline),  # type: ignore[misc]
        ]

        async def wait(deadline: Deadline = deadline, future: "asyncio.Future[str]" = future) -> str:
            try:
                return await deadline.wait(future, 5)
            except TimeoutError:
                return "too late"
            finally:
                assert cancellations() == 0

        def waiting(_: Deadline, wait: Callable[[], Coroutine[Any, Any, str]] = wait) -> object:
            return asyncio.create_task(wait())

        found = [act() for act in set_them[::order]]
        task = next(one for one in found if isinstance(one, asyncio.Task))
        assert await task in ("here", "too late")


@in_skipped_time
async def test_what_swallows_the_timeout_leaves_no_cancellation_behind(loop: SkippingLoop) -> None:
    async def stubborn() -> str:
        try:
            return await after(100)
        except asyncio.CancelledError:
            return "anyway"

    assert await Deadline().wait(stubborn(), 5) == "anyway"
    assert cancellations() == 0
    with pytest.raises(TimeoutError):  # asyncio's own, which would tell from the count that another was cancelled
        async with asyncio.timeout(1):
            await asyncio.sleep(10)


@in_skipped_time
async def test_what_makes_another_error_of_the_timeout_leaves_no_cancellation_behind(loop: SkippingLoop) -> None:
    async def translating() -> None:
        try:
            await after(100)
        except asyncio.CancelledError:
            raise ConnectionError from None

    with pytest.raises(ConnectionError):
        await Deadline().wait(translating(), 5)
    assert cancellations() == 0


@in_skipped_time
async def test_a_task_that_is_being_cancelled_can_still_wait_with_a_limit(loop: SkippingLoop) -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            with pytest.raises(TimeoutError):
                await Deadline().wait(after(100), 5)
            told.append("timed out")

    task = asyncio.create_task(work())
    loop.call_later(1, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["timed out"]
    assert loop.now == 1006
    assert task.cancelling() == 1


@pytest.mark.parametrize(("outer", "inner"), [(3, 5), (5, 3), (5, 5)])
def test_a_timeout_around_it_works_as_ever(outer: float, inner: float) -> None:
    async def test(loop: SkippingLoop) -> None:
        by_inner = False
        try:
            async with asyncio.timeout(outer) as around:
                try:
                    await Deadline().wait(after(100), inner)
                except TimeoutError:
                    by_inner = True
                    raise
        except TimeoutError:
            pass
        assert around.expired() == (outer <= inner)
        assert by_inner == (inner < outer)
        assert loop.now == 1000 + min(outer, inner)
        assert cancellations() == 0

    run(test)


WAIT = st.tuples(st.sampled_from([0.5, 1, 2, 3, 5]), st.sampled_from([0.25, 0.75, 1.5, 2.5, 4, 6]))


@given(st.lists(WAIT, min_size=1, max_size=8), st.sampled_from([inf, 3.3, 9.9]))
def test_any_row_of_waits_ends_when_each_should(waits: list[tuple[float, float]], total: float) -> None:
    async def test(loop: SkippingLoop) -> None:
        deadline = Deadline(total=total)
        now = 1000.0
        for comes, seconds in waits:
            limit = min(now + seconds, 1000 + total)
            if now + comes < limit:
                assert await deadline.wait(after(comes), seconds) == "x"
                now += comes
            elif now + comes > limit:
                await times_out(deadline, after(comes), seconds)
                now = max(now, limit)
            assert loop.now == pytest.approx(now)
        deadline.close()
        assert loop.running_timers == 0

    run(test)


def test_it_works_with_uvloop_too() -> None:
    async def test() -> None:
        deadline = Deadline(total=30)
        assert await deadline.wait(after(0), 20) == "x"
        never = asyncio.get_running_loop().create_future()
        await times_out(deadline, never, 0.01)
        deadline.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
