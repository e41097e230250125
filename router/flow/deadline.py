"""A limit on waiting that moves with every chunk and costs no timer a chunk."""

import asyncio
from collections.abc import Awaitable
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


class Deadline:
    """Waits for one thing after the other in one task, and raises TimeoutError for what has not come in time.

    A wait only notes a number: one timer runs, and when it rings too early, it is set again for what is left.
    asyncio's own `timeout` would make a timer each time. `close` ends the timer.
    """

    __slots__ = ("_due", "_last", "_loop", "_rung", "_task", "_timer")

    def __init__(self, *, total: float = inf) -> None:
        """`total`: seconds from now after which nothing is waited for any more."""
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time() + total
        self._due = inf
        self._rung = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, for_it: Awaitable[T], seconds: float) -> T:
        """What is waited for, if it comes within so many seconds and before the last moment of all."""
        self._due = min(self._loop.time() + seconds, self._last)
        self._task = task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        if self._timer is not None and self._timer.when() > self._due:
            self.close()  # it was set for a longer wait, as that for the first token is
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._ring)
        try:
            return await for_it
        except asyncio.CancelledError:
            # Somebody else may have cancelled the task at the same time; then that is what has happened.
            if self._rung and task.cancelling() == before + 1:
                raise TimeoutError from None
            raise
        finally:
            self._due = inf
            if self._rung:  # whatever became of our cancellation, it must not count against the task any longer
                self._rung = False
                task.uncancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._due == inf or self._task is None:
            return
        if self._loop.time() >= self._due:
            self._rung = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(self._due, self._ring)
