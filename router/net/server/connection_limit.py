"""Limits how many clients may be connected to one process."""

import logging
import time
from collections.abc import Callable
from typing import Final

from router.net.server.errors import ProtocolError

log = logging.getLogger("roundhouse.server")

_LOG_INTERVAL: Final = 60.0  # seconds; clients that retry would otherwise fill the log


class ConnectionLimit:
    """Refuses connections beyond `max_connections`; without a limit, engines and Redis would get no file descriptors.

    - `on_rejected` gets the reason for each refused connection; the log has one line a minute at most.
    """

    __slots__ = ("_last_logged", "_on_rejected", "max_connections")

    def __init__(self, max_connections: int, on_rejected: Callable[[str], None]) -> None:
        self.max_connections = max_connections
        self._on_rejected = on_rejected
        self._last_logged: float | None = None

    def reject(self) -> ProtocolError:
        """Counts a refused connection; returns the error for its client."""
        now = time.monotonic()
        if self._last_logged is None or now - self._last_logged >= _LOG_INTERVAL:
            self._last_logged = now
            log.warning("connection limit reached: %d clients are connected, others get 503", self.max_connections)
        self._on_rejected("too_many_connections")
        return ProtocolError(503, "too_many_connections", retry_after=1)
