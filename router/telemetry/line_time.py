"""The time at the start of log lines, and the access lines that wait to be written."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

_WRITE_DELAY: Final = 0.02  # seconds that an access line may wait, so that one system call writes several
_MILLISECONDS: Final = [f"{number:03d}" for number in range(1000)]  # formatting one costs as much as half a line


class LineTime:
    """The start of an access line is cached for a millisecond, and a formatted time for a second: strftime is slow."""

    def __init__(self, before_time: str, after_time: str, format_second: Callable[[int], str]) -> None:
        """What an access line has before and after its time. `format_second` leaves the milliseconds out."""
        self._before_time, self._after_time = before_time, after_time
        self._format_second = format_second
        self._second = self._millisecond = -1
        self._formatted_second = self._prefix = ""

    def line_prefix(self, now: float) -> str:
        """What precedes the facts in an access line that is written `now`, in seconds since the epoch."""
        millisecond = int(1000 * now)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._prefix = f"{self._before_time}{self.format(millisecond)}{self._after_time}"
        return self._prefix

    def format(self, millisecond: int) -> str:
        second, rest = divmod(millisecond, 1000)
        if second != self._second:
            self._second, self._formatted_second = second, self._format_second(second)
        return self._formatted_second + _MILLISECONDS[rest]


class PendingLines:
    """Access lines, which the running event loop writes after _WRITE_DELAY."""

    def __init__(self, time_of_lines: LineTime, write: Callable[[], None]) -> None:
        """`write` takes the lines."""
        self._time = time_of_lines
        self._write = write
        self._lines: list[str] = []

    def add(self, message: str) -> None:
        """Queues a line, with the current time."""
        if not self._lines:
            asyncio.get_running_loop().call_later(_WRITE_DELAY, self._write)
        self._lines.append(f"{self._time.line_prefix(time.time())}{message}\n")

    def take(self) -> str:
        """All of them; empty if there are none."""
        lines, self._lines = self._lines, []
        return "".join(lines)
