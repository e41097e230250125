"""How many clients may be connected to one process."""

import logging
import time
from collections.abc import Callable
from typing import Final

from router.net.server.errors import ProtocolError

log = logging.getLogger("roundhouse.server")

_LOG_INTERVAL: Final = 60.0  # seconds


class ConnectionLimit:
    """Refuses connections beyond `most`: without a bound, clients would leave no descriptor for engines and Redis.

    - `rejected` is called with the reason for each that is refused; the log says so once a minute at most.
    """

    __slots__ = ("_last_logged", "_on_rejected", "max_connections")

    def __init__(self, max_connections: int, on_rejected: Callable[[str], None]) -> None:
        self.max_connections = max_connections
        self._on_rejected = on_rejected
        self._last_logged: float | None = None

    def reject(self) -> ProtocolError:
        """Notes that a connection is refused; what its client is told."""
        now = time.monotonic()
        if self._last_logged is None or now - self._last_logged >= _LOG_INTERVAL:
            self._last_logged = now
            log.warning(
                "%d clients are connected, which is as many as there may be; others get 503", self.max_connections
            )
        self._on_rejected("too_many_connections")
        return ProtocolError(503, "too_many_connections", retry_after=1)
