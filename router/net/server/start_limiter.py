"""How many requests begin in one turn of the loop.

Theory. The loop does what is ready in the order in which it came, so of many requests that come at once, all would be
read first, then all would ask Redis, then all an engine: the first of them would have its answer when nearly all that
the last of them needs has been done, and the streams under way would have to wait for all of it. If few begin in each
turn, the first is at its engine while the last has not been begun, and half of them wait half as long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_STARTS_PER_ITERATION: Final = 8
"""Requests that begin before the others wait for the next turn; their first steps take less than a millisecond."""


class StartLimiter:
    """Begins requests in the order in which they come, few in each turn of the loop; nothing waits while few come."""

    __slots__ = ("_limit", "_remaining", "_waiting")

    def __init__(self, limit: int = MAX_STARTS_PER_ITERATION) -> None:
        self._limit = limit
        self._remaining = limit
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, callback: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Begins it now, or in one of the next turns."""
        if self._remaining == 0:
            self._waiting.append(callback)
            return
        self._remaining -= 1
        if self._remaining == 0:
            loop.call_soon(self._next_iteration, loop)
        callback()

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._remaining = self._limit
        while self._waiting and self._remaining > 0:
            self.start(self._waiting.popleft(), loop)
