"""A request starts at once, and gets a task only when it has to wait."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from router.net.pending_replies import PendingReplies
from router.net.server.eager import EagerRunner

Value = TypeVar("Value")


class OutcomeRecorder:
    """Records how a coroutine ended."""

    def __init__(self) -> None:
        self.seen: list[BaseException | None] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, coroutine: Coroutine[Any, None, None]) -> "asyncio.Task[None] | None":
        EagerRunner(asyncio.get_running_loop()).start(coroutine, self.tasks.append, self.seen.append)
        return self.tasks.pop() if self.tasks else None


async def test_a_request_that_does_not_wait_ends_at_once_without_a_task() -> None:
    ends = OutcomeRecorder()

    async def work() -> None:
        pass

    assert ends.start(work()) is None
    assert ends.seen == [None]


@pytest.mark.parametrize("iterations", [1, 2, 3])
async def test_a_request_that_waits_continues_in_a_task(iterations: int) -> None:
    ends = OutcomeRecorder()
    futures = [asyncio.get_running_loop().create_future() for _ in range(iterations)]
    results: list[Any] = []

    async def work() -> None:
        for future in futures:
            results.append(await future)
            await asyncio.sleep(0)
            assert asyncio.current_task() is task

    task = ends.start(work())
    assert task is not None
    for number, future in enumerate(futures):
        asyncio.get_running_loop().call_soon(future.set_result, number)
    await task
    assert results == list(range(iterations))
    assert ends.seen == [None]


async def test_a_request_that_waits_for_a_reply_continues_when_it_arrives_without_a_task() -> None:
    ends = OutcomeRecorder()
    first, second = (PendingReplies(asyncio.get_running_loop()) for _ in range(2))
    results: list[Any] = []

    async def work() -> None:
        results.append(await first)
        results.append(await second)

    assert await called(lambda: ends.start(work())) is None
    await called(lambda: first.set_result([1]))
    assert (results, ends.seen) == ([[1]], [])
    await called(lambda: second.set_result([2]))
    assert (results, ends.seen) == ([[1], [2]], [None])


async def test_a_request_that_waits_for_something_else_after_a_reply_gets_a_task_then() -> None:
    ends = OutcomeRecorder()
    reply, future = PendingReplies(asyncio.get_running_loop()), asyncio.get_running_loop().create_future()
    in_tasks: list[bool] = []

    async def work() -> None:
        with contextlib.suppress(LookupError):
            await reply
        in_tasks.append(asyncio.current_task() is not None)
        await future
        in_tasks.append(asyncio.current_task() is not None)

    assert await called(lambda: ends.start(work())) is None
    await called(lambda: reply.set_exception(LookupError()))
    (task,) = ends.tasks
    future.set_result(None)
    await task
    assert (in_tasks, ends.seen) == ([False, True], [None])


async def test_within_a_task_a_reply_behaves_like_a_future() -> None:
    ends = OutcomeRecorder()
    reply = PendingReplies(asyncio.get_running_loop())
    results: list[Any] = []

    async def work() -> None:
        await asyncio.sleep(0)
        results.append(await reply)
        results.append(await reply)

    task = ends.start(work())
    await asyncio.sleep(0)
    reply.set_result([1])
    assert task is not None
    await task
    assert (results, ends.seen) == ([[1], [1]], [None])


async def called(function: Callable[[], Value]) -> Value:
    """Calls it as the event loop calls a callback, outside of a task."""
    value: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: value.set_result(function()))
    return await value


async def test_the_awaited_result_may_arrive_before_its_task_has_started() -> None:
    ends = OutcomeRecorder()
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        assert await future == "there"

    task = ends.start(work())
    future.set_result("there")
    assert task is not None
    await task
    assert ends.seen == [None]


@pytest.mark.parametrize("at_once", [True, False], ids=["before its task has started", "later"])
async def test_a_cancelled_request_cancels_what_it_waits_for(at_once: bool) -> None:
    ends = OutcomeRecorder()
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await future

    task = ends.start(work())
    assert task is not None
    if not at_once:
        await asyncio.sleep(0)
    task.cancel()
    await task
    assert future.cancelled()  # so that a producer keeps its item
    assert [type(error) for error in ends.seen] == [asyncio.CancelledError]


@pytest.mark.parametrize("at_once", [True, False], ids=["before its task has started", "later"])
async def test_a_cancellation_reaches_the_coroutine_which_may_continue(at_once: bool) -> None:
    ends = OutcomeRecorder()
    started = asyncio.Event()
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await started.wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
        await asyncio.sleep(0)

    task = ends.start(work())
    assert task is not None
    if not at_once:
        started.set()
        await asyncio.sleep(0)
    task.cancel()
    await task
    assert cancelled
    assert ends.seen == [None]


async def test_an_exception_is_reported_once_and_not_to_the_task() -> None:
    ends = OutcomeRecorder()

    async def work(*, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError

    assert ends.start(work(waits=False)) is None
    task = ends.start(work(waits=True))
    assert task is not None
    await task
    assert [type(error) for error in ends.seen] == [ValueError, ValueError]


async def test_a_cancellation_that_is_not_caught_is_reported() -> None:
    ends = OutcomeRecorder()
    task = ends.start(asyncio.Event().wait())  # type: ignore[arg-type]  # what it gives is nobody's concern
    assert task is not None
    task.cancel()
    await task
    assert [type(error) for error in ends.seen] == [asyncio.CancelledError]
