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

PING_INTERVAL: Final = 0.3
"""Seconds between two signs of life that Redis is asked for."""

PING_TIMEOUT: Final = 0.8
"""Seconds without any sign after which a connection is taken to be lost: with what it takes to notice, under one."""


class Liveness:
    """When the servers that are listened to last answered a beat."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_pings: list[float] = []
        self._alive_until = -inf

    def set_server_count(self, count: int) -> None:
        """From now on, so many servers are listened to, each known by its number; 0 where none is."""
        self._last_pings = [-inf] * count
        self._alive_until = -inf

    def on_ping_reply(self, sent_at: float, server: int) -> None:
        """A server has answered the beat that was sent at this instant of the monotonic clock."""
        if server < len(self._last_pings):
            self._last_pings[server] = sent_at
            self._alive_until = min(self._last_pings) + PING_TIMEOUT

    def alive(self) -> bool:
        """Whether all servers have answered of late."""
        return self._monotonic() < self._alive_until
