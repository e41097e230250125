"""A server with one or more cores and one queue, first come first served: a router process, or a Redis shard."""

import heapq
from collections.abc import Callable
from typing import Any

from lab.scale.event_loop import EventLoop


class FifoServer:
    """Work of a known length is done in the order of arrival, one piece at a time on each core.

    - `busy`: core-seconds of the work that was given to it since `reset`, without `background`.
    - `background`: the share of each core, 0 up to 1, that other work takes. It stretches all service times.
    """

    def __init__(self, loop: EventLoop, *, cores: int = 1) -> None:
        self._loop = loop
        self._free_at = [0.0] * cores  # a heap
        self.background = 0.0
        self.busy = 0.0

    def submit(self, seconds: float, done: Callable[..., None] | None = None, *args: Any) -> None:
        """Adds work of `seconds` of CPU time; `done` is called when it is complete."""
        now = self._loop.now
        end = max(now, self._free_at[0]) + seconds / (1 - self.background)
        heapq.heapreplace(self._free_at, end)
        self.busy += seconds
        if done is not None:
            self._loop.after(end - now, done, *args)

    @property
    def backlog(self) -> float:
        """Seconds until new work would start."""
        return max(0.0, self._free_at[0] - self._loop.now)

    def reset(self) -> None:
        self.busy = 0.0

    def utilization(self, seconds: float) -> float:
        """The busy share of all cores over `seconds` since `reset`; above 1, work arrives faster than it is done."""
        return self.busy / seconds / len(self._free_at) + self.background
