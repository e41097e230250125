"""Records when a router or Redis was unavailable."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

OutageKind = Literal["killed", "stopped", "frozen", "held", "deaf", "full"]


class Outages:
    """When a router, or Redis, was unavailable, by the event loop's clock.

    `held`: its connections were held; `deaf`: they were held for longer than the lease of a generation.
    `full`: it refused what takes memory.
    """

    def __init__(self) -> None:
        self._times: list[tuple[OutageKind, float, float | None]] = []

    @contextmanager
    def record(self, kind: OutageKind) -> Iterator[None]:
        started = asyncio.get_running_loop().time()
        self._times.append((kind, started, None))
        index = len(self._times) - 1
        try:
            yield
        finally:
            self._times[index] = (kind, started, asyncio.get_running_loop().time())

    def duration_since(self, since: float, *kinds: OutageKind) -> float | None:
        """Seconds of unavailability since then, of these kinds or of any; None without an outage."""
        now = asyncio.get_running_loop().time()
        durations = [
            min(ended, now) - max(started, since)
            for started, ended in self._intervals(kinds)
            if ended >= max(started, since)
        ]
        return sum(durations) if durations else None

    def overlaps(self, since: float, until: float, *kinds: OutageKind) -> bool:
        return any(started <= until and ended >= since for started, ended in self._intervals(kinds))

    def _intervals(self, kinds: tuple[OutageKind, ...]) -> Iterator[tuple[float, float]]:
        now = asyncio.get_running_loop().time()
        for kind, started, ended in self._times:
            if not kinds or kind in kinds:
                yield started, now if ended is None else ended
