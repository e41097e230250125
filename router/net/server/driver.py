"""A generator that runs one coroutine after the other for an EagerRunner.

It stays Python: types.coroutine knows no compiled generators.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

DONE: Final = object()
"""What a driver yields when its coroutine has ended."""

Driver = Generator[Any, Any, None]
OnDone = Callable[[BaseException | None], None]
RequestCoroutine = Coroutine[Any, Any, None]


@types.coroutine
def drive() -> Driver:
    """Is sent a coroutine and its `on_done`, yields what the coroutine awaits, and DONE when it has ended.

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
        coroutine, on_done = yield DONE


class RemainingSteps(Coroutine[Any, Any, None]):
    """The remaining steps of a coroutine, in the form of a coroutine that a task can run."""

    __slots__ = ("_awaited", "_driver")

    def __init__(self, driver: Driver, awaited: Any) -> None:
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
        if awaited is DONE:
            raise StopIteration
        return awaited
