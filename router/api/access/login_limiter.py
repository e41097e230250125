"""How often an address may send a wrong key to the dashboard."""

from collections.abc import Callable
from typing import Final

MAX_FAILURES: Final = 10
"""Failed logins of an address in WINDOW seconds; further keys are not checked."""

WINDOW: Final = 60.0
"""Seconds."""

_MAX_ADDRESSES: Final = 1024


class LoginLimiter:
    """Counts failed logins by address in this process. Behind a proxy, all clients have its address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._failures: dict[str, list[float]] = {}

    def retry_after(self, address: str) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        oldest_counted = self._clock() - WINDOW
        failures = [failed_at for failed_at in self._failures.get(address, ()) if failed_at > oldest_counted]
        return failures[-MAX_FAILURES] - oldest_counted if len(failures) >= MAX_FAILURES else 0.0

    def record_failure(self, address: str) -> None:
        failures = self._failures.pop(address, [])
        # At the end of the dict: its first address is the one whose last failure is the oldest.
        self._failures[address] = [*failures[1 - MAX_FAILURES :], self._clock()]
        if len(self._failures) > _MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def forgive(self, address: str) -> None:
        """Takes the last failure back: the attempt was none."""
        self._failures[address] = self._failures.get(address, [])[:-1]
