"""Which rejections of a tenant's requests are justified, from the tenant's recent requests."""

from collections import defaultdict, deque
from typing import Final

from tests.chaos.workload import TENANTS

# Seconds for which a request counts: 61 by docs/limits.md, from when its router, which may be frozen, reads it.
_RATE_WINDOW: Final = 66.0
# Seconds for which an ended request may count, even if its router was killed.
_CONCURRENCY_WINDOW: Final = 5.0
_MAX_REQUESTS: Final = 10_000  # per tenant


class RateLimitModel:
    """The requests of each tenant with limits, by the event loop's clock."""

    def __init__(self) -> None:
        self._requests: dict[str, deque[list[float]]] = defaultdict(lambda: deque(maxlen=_MAX_REQUESTS))

    def start_request(self, tenant: str, at: float) -> list[float]:
        """Record a request. Returns the argument of `end_request`."""
        request = [at, float("inf")]
        if TENANTS[tenant].limits:
            self._requests[tenant].append(request)
        return request

    @staticmethod
    def end_request(request: list[float], at: float) -> None:
        request[1] = at

    def check_rejection(self, tenant: str, ending: str, at: float) -> list[str]:
        limits, requests = TENANTS[tenant].limits, self._requests[tenant]
        if ending == "429 rate_limit_exceeded requests":
            count, limit = (
                sum(started > at - _RATE_WINDOW for started, _ in requests),
                limits.get("requests_per_minute", 0),
            )
            period = "in a minute"
        elif ending == "429 rate_limit_exceeded rate_limit_error":
            count, limit = (
                sum(ended > at - _CONCURRENCY_WINDOW for _, ended in requests),
                limits.get("concurrent_requests", 0),
            )
            period = "at a time"
        elif ending == "429 rate_limit_exceeded tokens":
            return [] if "tokens_per_minute" in limits else [f"{tenant} has no limit of tokens"]
        else:
            return []
        return [] if count > limit > 0 else [f"refused after {count} requests {period}, and {limit} are allowed"]
