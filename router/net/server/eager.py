"""Runs the application for one request, without a task as long as it waits for nothing but Redis."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final

from router.net.pending_replies import PendingReplies

OnTaskStarted = Callable[["asyncio.Task[None]"], None]
OnDone = Callable[[BaseException | None], None]
RequestCoroutine = Coroutine[Any, Any, None]


class EagerRunner:
    """Runs coroutines: each starts at once, and gets a task only when it awaits something other than PendingReplies.

    - A coroutine that awaits nothing costs no more than a call: nothing is scheduled.
    - A coroutine that awaits PendingReplies is resumed by the call that delivers them. It cannot be cancelled there.
    - Before it has a task there is no current task, so `asyncio.timeout` and `asyncio.current_task` do not work. Code
      that needs them awaits something first; `asyncio.sleep(0)` is enough.
    - `on_done` is called exactly once, with the coroutine's exception or None; the task does not raise it.
    - A coroutine is never started within another one's first step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle_driver: _Driver | None = None  # for the next request

    def start(self, coroutine: RequestCoroutine, on_task_started: OnTaskStarted, on_done: OnDone) -> None:
        """Runs the first step, and those after PendingReplies; `on_task_started` gets the task that runs the rest."""
        driver, self._idle_driver = self._idle_driver, None
        if driver is None:
            driver = _drive()
            driver.send(None)  # to its first `yield`, where it takes a job
        self._resume(driver, on_task_started, (coroutine, on_done))

    def _resume(
        self, driver: "_Driver", on_task_started: OnTaskStarted, job: "tuple[RequestCoroutine, OnDone] | None" = None
    ) -> None:
        awaited = driver.send(job)
        if awaited is _DONE:
            self._idle_driver = driver
        elif type(awaited) is PendingReplies:
            awaited.then(partial(self._resume, driver, on_task_started))
        else:
            on_task_started(self._loop.create_task(_RemainingSteps(driver, awaited)))


_DONE: Final = object()
_Driver = Generator[Any, Any, None]


@types.coroutine
def _drive() -> _Driver:
    """Is sent a coroutine and its `on_done`, yields what the coroutine awaits, and _DONE when it has ended.

    A generator with `yield from`, since the end of the coroutine then costs no exception.
    """
    coroutine, on_done = yield
    while True:
        failure: BaseException | None = None
        try:
            yield from coroutine
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            failure = error  # the last line of defence: `on_done` logs it and ends the response
        on_done(failure)
        del coroutine, on_done, failure  # an idle driver must not keep a request's objects alive
        coroutine, on_done = yield _DONE


class _RemainingSteps(Coroutine[Any, Any, None]):
    """The remaining steps of a coroutine, in the form of a coroutine that a task can run."""

    __slots__ = ("_awaited", "_driver")

    def __init__(self, driver: _Driver, awaited: Any) -> None:
        self._driver = driver
        # What the coroutine awaited before it had a task: the task's first step yields it.
        self._awaited = awaited

    def __next__(self) -> Any:
        awaited, self._awaited = self._awaited, None
        return awaited if awaited is not None else self._unless_done(self._driver.send(None))

    def send(self, value: None) -> Any:
        return self.__next__()

    def throw(self, error: Any, *_: Any) -> Any:
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.cancel()  # the task was cancelled before its first step, so it does not know this future
        return self._unless_done(self._driver.throw(error))

    def close(self) -> None:
        self._driver.close()

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def _unless_done(self, awaited: Any) -> Any:
        if awaited is _DONE:
            raise StopIteration
        return awaited
