"""From which duration on a request of a model counts as slow: the 99th percentile of the last ones."""

from collections import deque
from math import inf
from typing import Final

_SAMPLE: Final = 1000  # requests
_MIN_NEW: Final = 100  # requests after which it is computed again


class SlowThreshold:
    """`seconds`: a longer request is slow. Infinite until enough requests are known."""

    __slots__ = ("_durations", "_new", "seconds")

    def __init__(self) -> None:
        self.seconds = inf
        self._durations: deque[float] = deque(maxlen=_SAMPLE)
        self._new = 0

    def add(self, durations: list[float]) -> None:
        """Of requests that have ended, in seconds."""
        self._durations.extend(durations)
        self._new += len(durations)
        if self._new >= _MIN_NEW:
            self._new = 0
            ordered = sorted(self._durations)
            self.seconds = ordered[len(ordered) * 99 // 100]


class _EveryRequest(SlowThreshold):
    """Of requests that failed, which are noted in any case. Their durations say nothing of those of others."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.seconds = -1.0

    def add(self, durations: list[float]) -> None:
        pass


class _NoRequest(SlowThreshold):
    """Of requests that were refused for what they asked. Many of them would leave no room for others."""

    __slots__ = ()

    def add(self, durations: list[float]) -> None:
        pass


EVERY_REQUEST: Final[SlowThreshold] = _EveryRequest()
NO_REQUEST: Final[SlowThreshold] = _NoRequest()
