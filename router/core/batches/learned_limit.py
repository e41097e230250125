"""How many requests an engine may have for lines of batches to begin there, if its limit is not configured.

Theory of operation. As TCP finds the capacity of a path: each reading of the engine's gauges lets a few more requests
in than it shows, until one shows a queue. What ran then is the limit, and from then on lines leave a share of it free.
A queue may have had another reason, and limits change: under load, the limit rises slowly until the next queue. If that
confirms it, the time until it rises again doubles.
"""

from math import ceil, floor, inf
from typing import Final

SHARE: Final = 0.75
"""Of an engine's limit: above that, no line begins, so that a request of a person finds a free slot."""

_REQUESTS_PER_STEP: Final = 16
_SLACK: Final = 4  # steps; requests that end are replaced before the next reading
_FULL_KV: Final = 0.9  # requests that wait for memory say nothing of the limit
_GROWTH: Final = 1.25
_FIRST_INTERVAL: Final = 600.0  # seconds
_MIN_INTERVAL: Final = 60.0
_MAX_INTERVAL: Final = 3600.0
_SAME: Final = 0.1


class LearnedLimit:
    """- Without gauges, any number may begin.
    - No more begin between two readings than a few, and none in a queue.
    - Once there was a queue, a quarter of what ran then stays free.
    - The gauges show the requests of all routers, so routers that share an engine leave the same room.

    `limit`: None if there was no queue yet. Times in seconds of a monotonic clock.
    """

    __slots__ = ("_has_queue", "_interval", "_learned", "_ramp", "_rises_after", "_rises_at", "limit")

    def __init__(self) -> None:
        self.limit: float | None = None
        self._learned = 0.0  # the limit at the last queue
        self._ramp = inf
        self._has_queue = False
        self._interval = self._rises_after = _FIRST_INTERVAL
        self._rises_at = inf

    def spare(self, load: float) -> float:
        """How many more lines may begin beside so many requests."""
        if self._has_queue:
            return 0
        if self._ramp == inf:
            return inf
        more = floor(self._ramp - load)
        return more if self.limit is None else min(more, ceil(SHARE * self.limit - load))

    def on_reading(
        self, now: float, running: float | None, waiting: float | None, kv_cache_usage: float | None, own: int
    ) -> None:
        """`own`: the requests of this process there. None is unknown."""
        if running is None:
            return  # not read, this time or ever
        had_queue, self._has_queue = self._has_queue, bool(waiting)
        if self._has_queue:
            if running >= 1 and (kv_cache_usage or 0.0) < _FULL_KV:
                self._learn(now, running, is_new=not had_queue)
            return
        # Processes that share the engine take their parts of a step at the same time.
        whole = max(1, running // _REQUESTS_PER_STEP, int(self.limit or 0) // (2 * _REQUESTS_PER_STEP))
        step = whole * min(1.0, (own + 1) / (running + 1))
        before = running if self._ramp == inf else max(self._ramp, running)
        self._ramp = min(before + step, running + max(1.0, _SLACK * step))
        if self.limit is not None:
            self.limit = max(self.limit, running)
            if running + _SLACK * whole < SHARE * self.limit:
                self._rises_at = now + self._rises_after  # without load, nothing would show that it is too high
            elif now >= self._rises_at:
                self.limit = max(self.limit + 1, _GROWTH * self.limit)
                self._rises_after = max(_MIN_INTERVAL, self._rises_after / 2)
                self._rises_at = now + self._rises_after

    def _learn(self, now: float, running: float, *, is_new: bool) -> None:
        if is_new:
            is_confirmed = abs(running - self._learned) <= _SAME * self._learned
            self._interval = min(2 * self._interval, _MAX_INTERVAL) if is_confirmed else _FIRST_INTERVAL
            self._learned = 0.0
        # During one queue, requests end and others begin.
        self.limit = self._learned = max(self._learned, running)
        self._rises_after = self._interval
        self._rises_at = now + self._rises_after
