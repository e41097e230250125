"""Threads for calls that may hang, as those of a disk or an object store may."""

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

_EXIT_WAIT: Final = 2.0
"""Seconds that the end of the process waits for calls in progress."""


class FileThreads(Executor):
    """As ThreadPoolExecutor, but a call that hangs does not keep the process from ending."""

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self._calls: _Calls = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _stop, self._calls, self._threads)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        with self._lock:
            if len(self._threads) < self._count:
                thread = threading.Thread(target=_work, args=(self._calls,), name="files", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future


def _work(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            _run(future, function)
        del call, future, function  # which may hold much


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)


def _stop(calls: _Calls, threads: list[threading.Thread]) -> None:
    for _ in threads:
        calls.put(None)
    if threading.main_thread().is_alive():
        return  # a reload: nobody waits
    until = time.monotonic() + _EXIT_WAIT
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
