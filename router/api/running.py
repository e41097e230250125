"""An application at work on one request: without a task, as long as it has to wait for nothing but Redis."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from router.shared.reply import Reply

Works = Callable[["asyncio.Task[None]"], None]
Ended = Callable[[BaseException | None], None]


class Running(Coroutine[Any, None, None]):
    """A coroutine that is begun at once, and gets a task only once it waits for something else than a Reply.

    - Where it waits for nothing, nothing was scheduled: it has cost what a call costs.
    - Where it waits for a Reply, it goes on in the moment in which that comes; what waits for one cannot be cancelled.
    - Until it has a task there is no current task: `asyncio.timeout` and `asyncio.current_task` do not work there. Who
      needs them waits for something first, be it `asyncio.sleep(0)`.
    - `ended` is called exactly once, with what the coroutine raised, or None; nothing is raised to the task.
    """

    __slots__ = ("_coroutine", "_ended", "_loop", "_waits_for", "_works")

    def __init__(
        self, coroutine: Coroutine[Any, None, None], loop: asyncio.AbstractEventLoop, works: Works, ended: Ended
    ) -> None:
        """`works` is told the task that goes on, if it needs one."""
        self._coroutine = coroutine
        self._loop = loop
        self._works = works
        self._ended = ended
        self._waits_for: Any = None

    def go_on(self) -> None:
        """Makes the first step, and each that comes after a Reply."""
        waits_for = self._step(self._coroutine.send, None)
        if type(waits_for) is Reply:
            waits_for.then(self.go_on)
        elif waits_for is not _END:
            self._waits_for = waits_for
            self._works(self._loop.create_task(self))

    def __next__(self) -> Any:
        waits_for = self._waits_for
        if waits_for is None:
            return self._go_on(self._coroutine.send, None)
        self._waits_for = None
        return waits_for  # the task waits for what the step before it waited for

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
        waits_for = self._step(step, value)
        if waits_for is _END:
            raise StopIteration
        return waits_for

    def _step(self, step: Callable[[Any], Any], value: Any) -> Any:
        failure: BaseException | None = None
        try:
            return step(value)
        except StopIteration:
            pass
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            failure = error  # the last line of defence: the server says what went wrong, and ends the answer
        self._ended(failure)
        return _END


_END: Final = object()
