"""Virtual time: callbacks in the order of their instants, and of their scheduling at the same instant."""

import heapq
from collections.abc import Callable
from typing import Any


class EventLoop:
    """Runs callbacks in virtual time; no wall clock, so a seed determines a whole run."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._scheduled: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        """`delay` in seconds, not negative."""
        self._count += 1
        heapq.heappush(self._scheduled, (self.now + delay, self._count, callback, args))

    def run(self, until: float) -> None:
        """Runs everything that is due up to this instant, which is the time afterwards."""
        scheduled = self._scheduled
        while scheduled and scheduled[0][0] <= until:
            self.now, _, callback, args = heapq.heappop(scheduled)
            callback(*args)
        self.now = until
