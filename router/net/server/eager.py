"""An application at work on one request: without a task, as long as it has to wait for nothing but Redis."""

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
    """Runs coroutines: each is begun at once, and gets a task only once it waits for something else than a Reply.

    - Where it waits for nothing, nothing was scheduled: it has cost what a call costs.
    - Where it waits for a Reply, it goes on in the moment in which that comes; what waits for one cannot be cancelled.
    - Until it has a task there is no current task: `asyncio.timeout` and `asyncio.current_task` do not work there. Who
      needs them waits for something first, be it `asyncio.sleep(0)`.
    - `ended` is called exactly once, with what the coroutine raised, or None; nothing is raised to the task.
    - Nothing is begun from within a coroutine's first step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle_driver: _Driver | None = None  # one that is at leisure

    def start(self, coroutine: RequestCoroutine, on_task_started: OnTaskStarted, on_done: OnDone) -> None:
        """Makes the first step, and each that comes after a Reply. `works` is told the task that makes the others."""
        driver, self._idle_driver = self._idle_driver, None
        if driver is None:
            driver = _drive()
            driver.send(None)
        self._resume(driver, on_task_started, (coroutine, on_done))

    def _resume(
        self, driver: "_Driver", on_task_started: OnTaskStarted, job: "tuple[RequestCoroutine, OnDone] | None" = None
    ) -> None:
        waits_for = driver.send(job)
        if waits_for is _DONE:
            self._idle_driver = driver
        elif type(waits_for) is PendingReplies:
            waits_for.then(partial(self._resume, driver, on_task_started))
        else:
            on_task_started(self._loop.create_task(_RemainingSteps(driver, waits_for)))


_DONE: Final = object()
_Driver = Generator[Any, Any, None]


@types.coroutine
def _drive() -> _Driver:
    """Is sent coroutines and who is told of their ends, and gives what each waits for until that is over.

    A generator, since what it goes through ends without an exception.
    """
    work, ended = yield
    while True:
        failure: BaseException | None = None
        try:
            yield from work
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            failure = error  # the last line of defence: the server says what went wrong, and ends the answer
        ended(failure)
        del work, ended, failure  # nothing is held while there is nothing to do
        work, ended = yield _DONE


class _RemainingSteps(Coroutine[Any, Any, None]):
    """The steps that are left of a coroutine, for a task."""

    __slots__ = ("_awaited", "_driver")

    def __init__(self, driver: _Driver, awaited: Any) -> None:
        self._driver = driver
        self._awaited = awaited  # what the last step did, where the task does not know it yet

    def __next__(self) -> Any:
        waits_for, self._awaited = self._awaited, None
        return waits_for if waits_for is not None else self._unless_done(self._driver.send(None))

    def send(self, value: None) -> Any:
        return self.__next__()

    def throw(self, error: Any, *_: Any) -> Any:
        waits_for, self._awaited = self._awaited, None
        if waits_for is not None:
            waits_for.cancel()  # as its task would have done, had it known of it
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
