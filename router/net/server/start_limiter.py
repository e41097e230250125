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

A_TURN: Final = 8
"""Requests that begin before the others wait for the next turn; their first steps take less than a millisecond."""


class Turns:
    """Begins requests in the order in which they come, few in each turn of the loop; nothing waits while few come."""

    __slots__ = ("_left", "_most", "_waiting")

    def __init__(self, most: int = A_TURN) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[Callable[[], None]] = deque()

    def begin(self, request: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Begins it now, or in one of the next turns."""
        if self._left == 0:
            self._waiting.append(request)
            return
        self._left -= 1
        if self._left == 0:
            loop.call_soon(self._next, loop)
        request()

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._waiting and self._left > 0:
            self.begin(self._waiting.popleft(), loop)
