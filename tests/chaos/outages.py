"""When something was away."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

OutageKind = Literal["killed", "stopped", "frozen", "held", "deaf"]


class Outages:
    """When a router, or Redis, was away, by the event loop's clock; `held`: its connections were.

    `deaf`: connections were held for longer than the lease of a generation.
    """

    def __init__(self) -> None:
        self._times: list[tuple[OutageKind, float, float | None]] = []

    @contextmanager
    def record(self, kind: OutageKind) -> Iterator[None]:
        began = asyncio.get_running_loop().time()
        self._times.append((kind, began, None))
        at = len(self._times) - 1
        try:
            yield
        finally:
            self._times[at] = (kind, began, asyncio.get_running_loop().time())

    def duration_since(self, since: float, *kinds: OutageKind) -> float | None:
        """For how many seconds it was away since then, of these kinds or of any; None where it was not."""
        now = asyncio.get_running_loop().time()
        away = [
            min(ended, now) - max(began, since) for began, ended in self._intervals(kinds) if ended >= max(began, since)
        ]
        return sum(away) if away else None

    def overlaps(self, since: float, until: float, *kinds: OutageKind) -> bool:
        """Whether it was away at some time between these two."""
        return any(began <= until and ended >= since for began, ended in self._intervals(kinds))

    def _intervals(self, kinds: tuple[OutageKind, ...]) -> Iterator[tuple[float, float]]:
        now = asyncio.get_running_loop().time()
        for kind, began, ended in self._times:
            if not kinds or kind in kinds:
                yield began, now if ended is None else ended
