"""How fast the lines of a batch are done, and how long the rest takes."""

from collections import deque
from typing import Final

RATE_SPAN: Final = 60.0
"""Seconds over which the rate is taken: long enough that it does not jump with each range of lines."""


class ProgressRate:
    """- The rate is that of the last minute, and of all the time before a minute has passed.
    - After a look that shows fewer lines than the one before, it begins anew: the router that counted them has died.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, at: float, status: str, done: int, *, paused: bool) -> None:
        """What a look at the batch found. Before its lines run, and after that, there is nothing to count."""
        if paused:
            self._looks.clear()  # the time after the pause says how long the rest takes
        elif status == "in_progress":
            self.add(at, done)

    def add(self, at: float, done: int) -> None:
        """`at`: in seconds, by any clock that does not go backwards."""
        if self._looks and done < self._looks[-1][1]:
            self._looks.clear()
        self._looks.append((at, done))
        while len(self._looks) > 2 and self._looks[1][0] <= at - RATE_SPAN:
            self._looks.popleft()

    @property
    def per_second(self) -> float | None:
        """None until time has passed."""
        if len(self._looks) < 2:
            return None
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None

    def seconds_left(self, total: int) -> float | None:
        """None while nothing is known of the rate, or no line is done."""
        rate = self.per_second
        return (total - self._looks[-1][1]) / rate if rate else None
