"""Replies that a request can wait for without a task of its own.

Theory of operation. A task costs as much as it does to ask Redis, and whoever waits in one goes on a turn of the loop
after what he waits for is there; while hundreds of streams are busy, a turn takes milliseconds. Most requests wait for
one thing only, which is the look-up of what is stored. So they wait for it as they are: see router.net.server.eager.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any


class PendingReplies:
    """Replies to come, set as those of a future are. One waits for them at most, and goes on when they come.

    - Awaited in a task, it is as a future is.
    - Awaited where there is no task, it gives itself to whoever makes the steps, who says by `then` how to go on. There
      is no leaving before they come; what is waited for like this has to come soon, or to fail.
    """

    __slots__ = ("_callback", "_error", "_loop", "_replies")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replies: list[Any] | None = None
        self._error: Exception | None = None
        self._callback: Callable[[], object] | None = None

    def then(self, callback: Callable[[], object]) -> None:
        """Has this called once the replies, or the error, are there."""
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

        def end() -> None:
            if not over.done():  # else who waited has left
                over.set_result(None)

        self._callback = end
        return over
