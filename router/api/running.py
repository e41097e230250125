"""An application at work on one request: without a task, as long as it has to wait for nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

Ended = Callable[[BaseException | None], None]


def begin(
    coroutine: Coroutine[Any, None, None], ended: Ended, loop: asyncio.AbstractEventLoop
) -> "asyncio.Task[None] | None":
    """Makes the first step of a coroutine. Gives the task that makes the others, if there are any.

    - Where the first step ends it, nothing was scheduled: it has cost what a call costs.
    - Within the first step there is no current task: `asyncio.timeout` and `asyncio.current_task` do not work there.
      Who needs them waits for something first, be it `asyncio.sleep(0)`.
    - `ended` is called exactly once, with what the coroutine raised, or None; nothing is raised to the task.
    """
    waits_for = _step(coroutine.send, None, ended)
    return None if waits_for is _END else loop.create_task(_Running(coroutine, ended, waits_for))


class _Running(Coroutine[Any, None, None]):
    """What is left of a coroutine after its first step, with what that waits for."""

    __slots__ = ("_coroutine", "_ended", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, None, None], ended: Ended, waits_for: Any) -> None:
        self._coroutine = coroutine
        self._ended = ended
        self._waits_for = waits_for

    def __next__(self) -> Any:
        waits_for = self._waits_for
        if waits_for is None:
            return self._go_on(self._coroutine.send, None)
        self._waits_for = None
        return waits_for  # the task waits for what the first step waited for

    def send(self, value: None) -> Any:
        return self.__next__()

    def throw(self, error: Any, *_: Any) -> Any:
        self._waits_for = None
        return self._go_on(self._coroutine.throw, error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def _go_on(self, step: Callable[[Any], Any], value: Any) -> Any:
        waits_for = _step(step, value, self._ended)
        if waits_for is _END:
            raise StopIteration
        return waits_for


def _step(step: Callable[[Any], Any], value: Any, ended: Ended) -> Any:
    failure: BaseException | None = None
    try:
        return step(value)
    except StopIteration:
        pass
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
        failure = error  # the last line of defence: the server says what went wrong, and ends the answer
    ended(failure)
    return _END


_END: Final = object()
