"""How many retries all requests of a router may make together."""

from math import exp
from typing import Final


class RetryBudget:
    """Limits retries to a share of the requests, plus a minimum rate.

    A leaky token bucket: unused tokens decay with a time constant of `WINDOW` seconds, so an hour without failures does
    not accumulate retries for a later outage. `now`: seconds of a monotonic clock. Source: Finagle's RetryBudget.
    """

    RETRY_RATIO: Final = 0.2  # tokens that each request adds; a retry takes one
    MIN_RETRIES_PER_SECOND: Final = 5.0  # for a router with few requests
    WINDOW: Final = 30.0

    def __init__(self, now: float, min_per_second: float | None = None) -> None:
        # The level at which the minimum rate and the decay balance, so that a new router can retry at once.
        self._least = (self.MIN_RETRIES_PER_SECOND if min_per_second is None else min_per_second) * self.WINDOW
        self._tokens = self._least
        self._updated_at = now

    def on_request(self, now: float) -> None:
        self._decay(now)
        self._tokens += self.RETRY_RATIO

    def try_acquire(self, now: float) -> bool:
        self._decay(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _decay(self, now: float) -> None:
        left = exp(-max(0.0, now - self._updated_at) / self.WINDOW)
        self._tokens = self._tokens * left + self._least * (1.0 - left)
        self._updated_at = max(self._updated_at, now)
