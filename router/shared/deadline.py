"""Until when the servers may take for a batch that is sent to them in several rounds."""

import asyncio

from router.shared.link import MORE


class Deadline:
    """The time of one batch, from now on.

    As on one connection, it is silence that is bounded: after a round in which every server has replied, the next one
    has all of the timeout again, as long as the batch takes at most MORE seconds longer than the timeout.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout` in seconds."""
        self._clock = asyncio.get_running_loop().time
        self._timeout = timeout
        self._until = self._clock() + timeout
        self._cap = self._until + MORE

    def left(self) -> float:
        """Seconds for which a server may now be silent."""
        return self._until - self._clock()

    def more(self) -> float:
        """Seconds beyond those for which the bytes of its replies may keep coming."""
        return self._cap - self._until

    def extend(self) -> None:
        """Every server that was asked has replied."""
        self._until = min(self._clock() + self._timeout, self._cap)
