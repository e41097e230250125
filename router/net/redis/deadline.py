"""Until when the servers may take for a batch that is sent to them in several rounds."""

import asyncio
from typing import Final

MAX_EXTRA_TIME: Final = 1.0
"""Seconds that a batch may take beyond its timeout while the bytes of its replies keep coming.

A timeout says how long Redis may be silent, not how large its replies may be: at `cache.timeout`'s 50 ms and 45 MB/s,
three entries of 0.9 MiB would be too many. On the other hand, whoever waits behind the batch waits for all of it. One
second lets 45 MiB through at that rate, 10 MiB at 10 MB/s; what is slower than that counts as down. It is paid once:
after that Redis is not waited for until it answers again. To generate an answer of such a size anew takes minutes.
"""


class Deadline:
    """The time of one batch, from now on.

    As on one connection, it is silence that is bounded: after a round in which every server has replied, the next one
    has all of the timeout again, as long as the batch takes at most MORE seconds longer than the timeout.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout` in seconds."""
        self._clock = asyncio.get_running_loop().time
        self._timeout = timeout
        self._deadline = self._clock() + timeout
        self._max_deadline = self._deadline + MAX_EXTRA_TIME

    def remaining(self) -> float:
        """Seconds for which a server may now be silent."""
        return self._deadline - self._clock()

    def extra_time(self) -> float:
        """Seconds beyond those for which the bytes of its replies may keep coming."""
        return self._max_deadline - self._deadline

    def extend(self) -> None:
        """Every server that was asked has replied."""
        self._deadline = min(self._clock() + self._timeout, self._max_deadline)
