"""Whether pushes of changes arrive without delay, as far as recent pings show.

Theory of operation. Pushes and the replies to pings come over the same connections, in order. So once a ping is
answered, every change made before the ping was sent has been received. That is relied on for PING_TIMEOUT, by the
monotonic clock. A process that was stopped for longer (SIGSTOP, a virtual machine that is migrated, a blocked event
loop) may handle its clients' requests before it reads its pushes, and before any timer shows that the ping is late. So
code that relies on pushes calls `alive` first.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Final

PING_INTERVAL: Final = 0.3
"""Seconds between two pings."""

PING_TIMEOUT: Final = 0.8
"""Seconds after which an unanswered ping counts as a lost connection; it is then noticed in under a second."""


class Liveness:
    """When each server that the listener is connected to last answered a ping."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_pings: list[float] = []
        self._alive_until = -inf

    def set_server_count(self, count: int) -> None:
        """Starts anew with this many servers, numbered from 0; 0 while the listener is not connected."""
        self._last_pings = [-inf] * count
        self._alive_until = -inf

    def on_ping_reply(self, sent_at: float, server: int) -> None:
        """A server has answered the ping that was sent at this instant of the monotonic clock."""
        if server < len(self._last_pings):  # a reply may come after the listener has stopped
            # The time of sending: only changes made before it are known to have been received.
            self._last_pings[server] = sent_at
            self._alive_until = min(self._last_pings) + PING_TIMEOUT

    def alive(self) -> bool:
        """Whether every server has answered a ping that was sent within PING_TIMEOUT."""
        return self._monotonic() < self._alive_until
