"""Keeps the latest requests of this process for the status API, while someone watches."""

from collections import deque
from collections.abc import Callable

from router.flow.exchange import Exchange
from router.shared.status.latest_requests import MAX_REQUESTS
from router.shared.status.status_documents import RequestRow


class LatestRequests:
    """The requests that have ended since the last `take`, the newest MAX_REQUESTS of them; also over a reload."""

    def __init__(self, router_id: str, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._router_id = router_id
        self._clock = clock
        # Their rows are made when they are taken: under load, most requests are never shown.
        self._ended: deque[tuple[float, Exchange, float]] = deque(maxlen=MAX_REQUESTS)

    def record(self, exchange: Exchange, duration: float) -> None:
        """`duration` in seconds."""
        self._ended.append((self._clock(), exchange, duration))

    def take(self, now: float) -> list[RequestRow]:
        """The oldest first. `now`: seconds since the epoch."""
        ended = list(self._ended)
        self._ended.clear()
        offset = now - self._clock()
        return [self._row(ended_at + offset, exchange, duration) for ended_at, exchange, duration in ended]

    def _row(self, ended_at: float, exchange: Exchange, duration: float) -> RequestRow:
        first_token_at = exchange.first_token_at
        return RequestRow(
            at=round(ended_at, 3),
            request_id=exchange.request_id,
            router=self._router_id,
            tenant=exchange.tenant,
            model=exchange.model,
            task=exchange.task,
            cache=exchange.cache_status,
            reason=exchange.bypass_reason or exchange.miss_reason or exchange.error_reason,
            engine=exchange.engine,
            status=exchange.status,
            outcome=exchange.outcome,
            ms=round(1000 * duration, 3),
            ttft_ms=None if first_token_at is None else round(1000 * (first_token_at - exchange.started_at), 3),
            completion_tokens=exchange.completion_tokens,
            key=exchange.key,
        )
