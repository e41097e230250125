"""The deadline of a batch that is sent to a cluster in several rounds."""

import asyncio
from typing import Final

MAX_EXTRA_TIME: Final = 1.0
"""Seconds that a batch may take beyond its timeout while bytes of its replies keep arriving.

A timeout bounds Redis' silence, not the size of its replies: with `cache.timeout` at 50 ms and 45 MB/s, three entries
of 0.9 MiB would be too many. On the other hand, every command that is queued behind the batch waits for all of it. One
second is enough for 45 MiB at that rate, and for 10 MiB at 10 MB/s; a slower Redis counts as down. Requests wait that
long only once: from then on Redis is down until it answers a probe. To generate a response of such a size takes
minutes.
"""


class Deadline:
    """The time that is left for one batch, from now on.

    As on one connection, silence is what is bounded: after a round in which every server has replied, the next round
    gets the full timeout again, but the batch takes at most MAX_EXTRA_TIME seconds longer than the timeout.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout` in seconds."""
        self._clock = asyncio.get_running_loop().time
        self._timeout = timeout
        self._deadline = self._clock() + timeout
        self._max_deadline = self._deadline + MAX_EXTRA_TIME

    def remaining(self) -> float:
        """Seconds that a server may be silent now."""
        return self._deadline - self._clock()

    def extra_time(self) -> float:
        """Seconds beyond `remaining` that bytes of its replies may keep arriving."""
        return self._max_deadline - self._deadline

    def extend(self) -> None:
        """To be called when every server of a round has replied."""
        self._deadline = min(self._clock() + self._timeout, self._max_deadline)
