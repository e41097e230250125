"""Runs the application for one request, without a task as long as it waits for nothing but Redis."""

import asyncio
from collections.abc import Callable
from functools import partial

from router.net.pending_replies import PendingReplies
from router.net.server.driver import DONE, Driver, OnDone, RemainingSteps, RequestCoroutine, drive

OnTaskStarted = Callable[["asyncio.Task[None]"], None]


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
        self._idle_driver: Driver | None = None  # for the next request

    def start(self, coroutine: RequestCoroutine, on_task_started: OnTaskStarted, on_done: OnDone) -> None:
        """Runs the first step, and those after PendingReplies; `on_task_started` gets the task that runs the rest."""
        driver, self._idle_driver = self._idle_driver, None
        if driver is None:
            driver = drive()
            driver.send(None)  # to its first `yield`, where it takes a job
        self._resume(driver, on_task_started, (coroutine, on_done))

    def _resume(
        self, driver: Driver, on_task_started: OnTaskStarted, job: tuple[RequestCoroutine, OnDone] | None = None
    ) -> None:
        awaited = driver.send(job)
        if awaited is DONE:
            self._idle_driver = driver
        elif type(awaited) is PendingReplies:
            awaited.then(partial(self._resume, driver, on_task_started))
        else:
            on_task_started(self._loop.create_task(RemainingSteps(driver, awaited)))
