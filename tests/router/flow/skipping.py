"""An event loop for tests of time in which no time passes."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import wraps
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")


class SkippingLoop(asyncio.SelectorEventLoop):
    """Time passes only when there is nothing else to do, and then at once. `timers` are all that were ever set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[asyncio.TimerHandle] = []
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self.timers.append(handle)
        return handle

    @property
    def running_timers(self) -> int:
        return sum(not handle.cancelled() and handle.when() > self.now for handle in self.timers)


class _SkippingSelector(selectors.SelectSelector):
    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen"
            self._loop.now += timeout
        return found


def run(test: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine that takes the loop, to its end."""
    loop = SkippingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


def in_skipped_time(test: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Makes a test of a coroutine that takes the loop."""

    @wraps(test)
    def running() -> None:
        run(test)

    del running.__dict__["__wrapped__"]  # else pytest looks for a fixture named loop
    return running
