"""Which refusals of a tenant's requests are due: a plain look at what the tenant has asked of late."""

from collections import defaultdict, deque
from typing import Final

from tests.chaos.workload import TENANTS

_RATE_WINDOW: Final = (
    66.0  # seconds for which a request counts: 61 by docs/limits.md, from when its router, maybe frozen, reads it
)
_CONCURRENCY_WINDOW: Final = (
    5.0  # seconds after which a request that is over does not count, even that of a router that died
)
_MAX_REQUESTS: Final = 10_000  # requests of a tenant


class RateLimitModel:
    """What each tenant with limits asks, by the event loop's clock."""

    def __init__(self) -> None:
        self._requests: dict[str, deque[list[float]]] = defaultdict(lambda: deque(maxlen=_MAX_REQUESTS))

    def start_request(self, tenant: str, at: float) -> list[float]:
        """A request; what `end` wants."""
        request = [at, float("inf")]
        if TENANTS[tenant].limits:
            self._requests[tenant].append(request)
        return request

    @staticmethod
    def end_request(request: list[float], at: float) -> None:
        request[1] = at

    def check_rejection(self, tenant: str, ending: str, at: float) -> list[str]:
        """What is wrong with how a request ended; `at`: when."""
        limits, asked = TENANTS[tenant].limits, self._requests[tenant]
        if ending == "429 rate_limit_exceeded requests":
            count, limit = sum(began > at - _RATE_WINDOW for began, _ in asked), limits.get("requests_per_minute", 0)
            what = "in a minute"
        elif ending == "429 rate_limit_exceeded rate_limit_error":
            count, limit = (
                sum(ended > at - _CONCURRENCY_WINDOW for _, ended in asked),
                limits.get("concurrent_requests", 0),
            )
            what = "at a time"
        elif ending == "429 rate_limit_exceeded tokens":
            return [] if "tokens_per_minute" in limits else [f"{tenant} has no limit of tokens"]
        else:
            return []
        return [] if count > limit > 0 else [f"refused after {count} requests {what}, and {limit} are allowed"]
