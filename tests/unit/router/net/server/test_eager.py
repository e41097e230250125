"""A request starts at once, and gets a task only when it has to wait."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from router.net.pending_replies import PendingReplies
from router.net.server.eager import EagerRunner

Value = TypeVar("Value")


class Ends:
    """Records how a coroutine ended."""

    def __init__(self) -> None:
        self.seen: list[BaseException | None] = []
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, coroutine: Coroutine[Any, None, None]) -> "asyncio.Task[None] | None":
        EagerRunner(asyncio.get_running_loop()).start(coroutine, self.tasks.append, self.seen.append)
        return self.tasks.pop() if self.tasks else None


async def test_a_request_that_does_not_wait_ends_at_once_without_a_task() -> None:
    ends = Ends()

    async def work() -> None:
        pass

    assert ends.begin(work()) is None
    assert ends.seen == [None]


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_request_that_waits_continues_in_a_task(turns: int) -> None:
    ends = Ends()
    futures = [asyncio.get_running_loop().create_future() for _ in range(turns)]
    heard: list[Any] = []

    async def work() -> None:
        for future in futures:
            heard.append(await future)
            await asyncio.sleep(0)
            assert asyncio.current_task() is task

    task = ends.begin(work())
    assert task is not None
    for number, future in enumerate(futures):
        asyncio.get_running_loop().call_soon(future.set_result, number)
    await task
    assert heard == list(range(turns))
    assert ends.seen == [None]


async def test_a_request_that_waits_for_a_reply_continues_when_it_arrives_without_a_task() -> None:
    ends = Ends()
    first, second = (PendingReplies(asyncio.get_running_loop()) for _ in range(2))
    heard: list[Any] = []

    async def work() -> None:
        heard.append(await first)
        heard.append(await second)

    assert await called(lambda: ends.begin(work())) is None
    await called(lambda: first.set_result([1]))
    assert (heard, ends.seen) == ([[1]], [])
    await called(lambda: second.set_result([2]))
    assert (heard, ends.seen) == ([[1], [2]], [None])


async def test_a_request_that_waits_for_something_else_after_a_reply_gets_a_task_then() -> None:
    ends = Ends()
    reply, future = PendingReplies(asyncio.get_running_loop()), asyncio.get_running_loop().create_future()
    in_tasks: list[bool] = []

    async def work() -> None:
        with contextlib.suppress(LookupError):
            await reply
        in_tasks.append(asyncio.current_task() is not None)
        await future
        in_tasks.append(asyncio.current_task() is not None)

    assert await called(lambda: ends.begin(work())) is None
    await called(lambda: reply.set_exception(LookupError()))
    (task,) = ends.tasks
    future.set_result(None)
    await task
    assert (in_tasks, ends.seen) == ([False, True], [None])


async def test_within_a_task_a_reply_behaves_like_a_future() -> None:
    ends = Ends()
    reply = PendingReplies(asyncio.get_running_loop())
    heard: list[Any] = []

    async def work() -> None:
        await asyncio.sleep(0)
        heard.append(await reply)
        heard.append(await reply)

    task = ends.begin(work())
    await asyncio.sleep(0)
    reply.set_result([1])
    assert task is not None
    await task
    assert (heard, ends.seen) == ([[1], [1]], [None])


async def called(function: Callable[[], Value]) -> Value:
    """Calls it as the event loop calls a callback, outside of a task."""
    value: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: value.set_result(function()))
    return await value


async def test_the_awaited_result_may_arrive_before_its_task_has_started() -> None:
    ends = Ends()
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        assert await future == "there"

    task = ends.begin(work())
    future.set_result("there")
    assert task is not None
    await task
    assert ends.seen == [None]


@pytest.mark.parametrize("at_once", [True, False], ids=["before its task has begun", "later"])
async def test_a_cancelled_request_cancels_what_it_waits_for(at_once: bool) -> None:
    ends = Ends()
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await future

    task = ends.begin(work())
    assert task is not None
    if not at_once:
        await asyncio.sleep(0)
    task.cancel()
    await task
    assert future.cancelled()  # so that a producer keeps its item
    assert [type(error) for error in ends.seen] == [asyncio.CancelledError]


@pytest.mark.parametrize("at_once", [True, False], ids=["before its task has begun", "later"])
async def test_a_cancellation_reaches_the_coroutine_which_may_continue(at_once: bool) -> None:
    ends = Ends()
    begun = asyncio.Event()
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await begun.wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
        await asyncio.sleep(0)

    task = ends.begin(work())
    assert task is not None
    if not at_once:
        begun.set()
        await asyncio.sleep(0)
    task.cancel()
    await task
    assert cancelled
    assert ends.seen == [None]


async def test_an_exception_is_reported_once_and_not_to_the_task() -> None:
    ends = Ends()

    async def work(*, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError

    assert ends.begin(work(waits=False)) is None
    task = ends.begin(work(waits=True))
    assert task is not None
    await task
    assert [type(error) for error in ends.seen] == [ValueError, ValueError]


async def test_a_cancellation_that_is_not_caught_is_reported() -> None:
    ends = Ends()
    task = ends.begin(asyncio.Event().wait())  # type: ignore[arg-type]  # what it gives is nobody's concern
    assert task is not None
    task.cancel()
    await task
    assert [type(error) for error in ends.seen] == [asyncio.CancelledError]
