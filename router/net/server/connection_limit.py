"""How many clients may be connected to one process."""

import logging
import time
from collections.abc import Callable
from typing import Final

from router.net.server.errors import ProtocolError

log = logging.getLogger("roundhouse.server")

_LOG_EVERY: Final = 60.0  # seconds


class ConnectionLimit:
    """Refuses connections beyond `most`: without a bound, clients would leave no descriptor for engines and Redis.

    - `rejected` is called with the reason for each that is refused; the log says so once a minute at most.
    """

    __slots__ = ("_logged", "_rejected", "most")

    def __init__(self, most: int, rejected: Callable[[str], None]) -> None:
        self.most = most
        self._rejected = rejected
        self._logged: float | None = None

    def refuse(self) -> ProtocolError:
        """Notes that a connection is refused; what its client is told."""
        now = time.monotonic()
        if self._logged is None or now - self._logged >= _LOG_EVERY:
            self._logged = now
            log.warning("%d clients are connected, which is as many as there may be; others get 503", self.most)
        self._rejected("too_many_connections")
        return ProtocolError(503, "too_many_connections", retry_after=1)
