"""Signals that end a command: it tidies up, its `finally` blocks run, and what it has changed by then is recorded.

Theory of operation of `cancelled_by_signals`. SIGINT, SIGTERM and SIGHUP cancel the task, so that it ends at its next
await. redis-py, and on Python 3.11 asyncio.wait_for below it, can swallow a cancellation that coincides with another
event, so the task is cancelled again until it has ended. A command may also stand in a read of standard input, and the
loop comes to no await: then the signal raises there, and `exit_if_ended` before the read, for one whose cancellation
was swallowed just before. A second signal ends the process at once.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, NoReturn

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


_CANCEL_INTERVAL: Final = 0.1  # seconds
_SHOW_CURSOR: Final = "\x1b[?25h"


class _Interruption:
    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self.code: int | None = None
        self.is_over = False
        self._task = task

    def on_signal(self, number: int, _: object) -> None:
        if self.code is not None:
            _end_process(self.code)
        self.code = 128 + number
        loop = self._task.get_loop()
        if asyncio.current_task(loop) is self._task:
            # The task may stand between a call of a coroutine function and the await of the coroutine.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            sys.exit(self.code)
        # At once, since the task's next step may be a read of standard input; the loop may stand in a wait, which the
        # second line ends.
        self._task.cancel()
        loop.call_soon_threadsafe(loop.call_later, _CANCEL_INTERVAL, self._cancel)

    def _cancel(self) -> None:
        if not self.is_over:
            self._task.cancel()
            self._task.get_loop().call_later(_CANCEL_INTERVAL, self._cancel)


_INTERRUPTION: Final[ContextVar[_Interruption | None]] = ContextVar("interruption", default=None)


def exit_if_ended() -> None:
    """Exits if a signal has ended the command. To be called before a read that may block."""
    interruption = _INTERRUPTION.get()
    if interruption is not None and interruption.code is not None:
        sys.exit(interruption.code)


def _end_process(code: int) -> NoReturn:
    """Without `finally` blocks: an exception in the middle of the event loop would print its traceback."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)  # a progress bar has hidden it
        sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Around the awaits of a task: a signal cancels it, and then ends the process with the exit code 128 + number."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    interruption = _Interruption(task)
    before = {number: signal.getsignal(number) for number in _SIGNALS if _is_ours(number)}
    token = _INTERRUPTION.set(interruption)
    try:
        for number in before:
            signal.signal(number, interruption.on_signal)
        yield
    except asyncio.CancelledError:
        if interruption.code is None:
            raise
        sys.exit(interruption.code)
    finally:
        interruption.is_over = True
        _INTERRUPTION.reset(token)
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_ours(number: int) -> bool:
    """Not if the signal is ignored, as under nohup, nor if the command has a handler of its own."""
    handler: Callable[..., Any] | int | None = signal.getsignal(number)
    # asyncio.run has set a handler for SIGINT, which would be deaf during a read.
    return handler is not signal.SIG_IGN if number == signal.SIGINT else handler is signal.SIG_DFL
