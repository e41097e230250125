"""A warning about a state that lasts: a line for each event would fill the log."""

import logging
import time
from collections.abc import Callable
from typing import Final

INTERVAL: Final = 60.0
"""Seconds between two lines."""


class RepeatedWarning:
    """Logs at once when it begins, and then once in INTERVAL at most, with how often it was left out."""

    __slots__ = ("_clock", "_left_out", "_log", "_logged_at")

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that only grow."""
        self._log = log
        self._clock = clock
        self._logged_at: float | None = None
        self._left_out = 0

    def log(self, message: str, *arguments: object) -> None:
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < INTERVAL:
            self._left_out += 1
            return
        more = f" ({self._left_out} times more since the last line)" if self._left_out else ""
        self._log.warning(message + more, *arguments)
        self._logged_at, self._left_out = now, 0

    def reset(self) -> None:
        """The state has ended: the next event is logged at once."""
        self._logged_at, self._left_out = None, 0
