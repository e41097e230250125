"""Signals that end a command: it tidies up, its `finally` blocks run, and what it has changed by then is recorded.

Theory of operation of `cancelled_by_signals`. SIGINT, SIGTERM and SIGHUP cancel the task, so that it ends at its next
await. A command may also stand in a read of standard input, and the loop comes to no await: then the signal raises
there. A second signal ends the command at once.
"""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Termination:
    """Exits on a signal.

    Python ignores an exception that is raised in a callback of the garbage collector or of an import, and a signal can
    arrive in one. So `check` exits for a signal that was lost like this.
    """

    def __init__(self) -> None:
        self._code: int | None = None

    def on_signal(self, number: int, _: object) -> None:
        self._code = 128 + number
        sys.exit(self._code)

    def check(self) -> None:
        if self._code is not None:
            sys.exit(self._code)


class _Interruption:
    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self.code: int | None = None
        self._task = task

    def on_signal(self, number: int, _: object) -> None:
        is_first = self.code is None
        self.code = 128 + number
        loop = self._task.get_loop()
        if not is_first or asyncio.current_task(loop) is self._task:
            sys.exit(self.code)
        self._task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes it up


@contextlib.contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Around the awaits of a task: a signal cancels it, and then ends the process with the exit code 128 + number."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    interruption = _Interruption(task)
    before = {number: signal.getsignal(number) for number in _SIGNALS if _is_ours(number)}
    try:
        for number in before:
            signal.signal(number, interruption.on_signal)
        yield
    except asyncio.CancelledError:
        if interruption.code is None:
            raise
        sys.exit(interruption.code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_ours(number: int) -> bool:
    """Not if the signal is ignored, as under nohup, nor if the command has a handler of its own."""
    handler: Callable[..., Any] | int | None = signal.getsignal(number)
    # asyncio.run has set a handler for SIGINT, which would be deaf during a read.
    return handler is not signal.SIG_IGN if number == signal.SIGINT else handler is signal.SIG_DFL
