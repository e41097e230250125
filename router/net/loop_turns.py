"""Lets many tasks that have the same event to handle go on one by one, each in its own iteration of the event loop.

An engine that ends breaks all of its streams off at once. What each has said is read to find how another engine can go
on, which takes a millisecond for a long stream. If all were read in one iteration, every other request of the process
would wait for them.
"""

import asyncio
from collections import deque


class LoopTurns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Returns in an iteration of the event loop in which no other caller goes on, in the order of the calls."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        # The task goes on in the next iteration, and so does this function; it takes out who has left.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if self._waiting:
            self._waiting[0].set_result(None)
            loop.call_soon(self._next, loop)
