"""Limits how many requests start in one iteration of the event loop.

Theory. The loop runs ready callbacks in order of arrival. So if many requests arrive at once, it would read all of
them, then send all their Redis commands, then all their engine requests. The first request would get its response only
when nearly all work for the last one is done, and running streams would wait for all of it. If few requests start in
each iteration, the first is at its engine before the last starts, and half of them wait half as long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_STARTS_PER_ITERATION: Final = 8
"""Requests that start in one iteration; their first steps take less than a millisecond together."""


class StartLimiter:
    """Starts requests in order of arrival, a few in each iteration of the loop; a few requests never wait."""

    def __init__(self, limit: int = MAX_STARTS_PER_ITERATION) -> None:
        self._limit = limit
        self._remaining = limit
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, callback: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Calls it now, or in one of the next iterations."""
        if self._remaining == 0:
            self._waiting.append(callback)
            return
        self._remaining -= 1
        if self._remaining == 0:
            # One callback an iteration, and only while the limit is reached: an idle loop is not woken.
            loop.call_soon(self._next_iteration, loop)
        callback()

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._remaining = self._limit
        while self._waiting and self._remaining > 0:
            self.start(self._waiting.popleft(), loop)
