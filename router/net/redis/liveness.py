"""Whether Redis has shown of late that it tells this process of changes.

Theory of operation. Pushes and the replies of the beat come over the same connections, in order. So once a beat is
answered, every change from before the beat was sent has been told. That holds for SILENCE, by the monotonic clock. A
process that was stopped for longer (SIGSTOP, a virtual machine that is moved, a blocked event loop) handles what its
clients sent meanwhile before it reads its pushes, and before any timer says that the beat is late; so what relies on
being told asks here first.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Final

BEAT: Final = 0.3
"""Seconds between two signs of life that Redis is asked for."""

SILENCE: Final = 0.8
"""Seconds without any sign after which a connection is taken to be lost: with what it takes to notice, under one."""


class Liveness:
    """When the servers that are listened to last answered a beat."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._beats: list[float] = []
        self._until = -inf

    def listen(self, servers: int) -> None:
        """From now on, so many servers are listened to, each known by its number; 0 where none is."""
        self._beats = [-inf] * servers
        self._until = -inf

    def answered(self, sent: float, server: int) -> None:
        """A server has answered the beat that was sent at this instant of the monotonic clock."""
        if server < len(self._beats):
            self._beats[server] = sent
            self._until = min(self._beats) + SILENCE

    def alive(self) -> bool:
        """Whether all servers have answered of late."""
        return self._monotonic() < self._until
