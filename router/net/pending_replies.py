"""Replies that a request can await without a task of its own.

Theory of operation. A task costs as much as a command to Redis, and it resumes one loop iteration after the result is
available; with hundreds of busy streams, an iteration takes milliseconds. Most requests await a single thing, the
lookup in the cache. So they await it without a task and resume when the reply arrives: see router.net.server.eager.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any


class PendingReplies:
    """Pending replies, set like those of a future. At most one coroutine awaits them; it resumes when they arrive.

    - Awaited in a task, it behaves like a future.
    - Awaited without a task, it yields itself to the EagerRunner, which sets a callback with `then`. Such a wait cannot
      be cancelled, so the replies must come, or fail, soon.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replies: list[Any] | None = None
        self._error: Exception | None = None
        self._callback: Callable[[], object] | None = None

    def then(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def done(self) -> bool:
        return self._replies is not None or self._error is not None

    def set_result(self, replies: list[Any]) -> None:
        self._replies = replies
        if self._callback is not None:
            self._callback()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        if self._callback is not None:
            self._callback()

    def exception(self) -> Exception | None:
        return self._error

    def __await__(self) -> Generator[Any, None, list[Any]]:
        if not self.done():
            if asyncio.current_task(self._loop) is None:
                yield self
            else:
                yield from self._as_future()
        if self._error is not None:
            raise self._error
        assert self._replies is not None
        return self._replies

    def _as_future(self) -> "asyncio.Future[None]":
        over: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not over.done():  # done: the task that awaited it was cancelled
                over.set_result(None)

        self._callback = wake
        return over
