"""The last requests of this process, for the status API and `roundhouse why`, without prompts and responses.

Theory of operation. A process keeps references to what it has noted of its requests anyway. Their rows are made when
someone watches; under load, most requests are never shown. Those that failed or were slow have a ring of their own, so
that they are still there when many others have followed.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from router.flow.exchange import AttemptFacts, Exchange
from router.flow.request_times import generation_times
from router.shared.status.status_documents import AttemptRow, RequestRow

MAX_KEPT: Final = 256
"""Requests of each ring."""

_MAX_ATTEMPTS: Final = 8  # the last ones; more than that are rare
_MAX_MESSAGE: Final = 160  # characters of what an engine said

_Ended = tuple[float, Exchange, bool]  # its end by time.perf_counter, and whether it failed or was slow


class LatestRequests:
    """The last requests that have ended, and the last that failed or were slow, also over a reload."""

    def __init__(self, router_id: str, clock: Callable[[], float]) -> None:
        """`clock`: time.perf_counter."""
        self._router_id = router_id
        self._clock = clock
        self._recent: deque[_Ended] = deque(maxlen=MAX_KEPT)
        self._notable: deque[_Ended] = deque(maxlen=MAX_KEPT)
        self._new_recent = self._new_notable = 0  # since the last `take`

    def record(self, exchange: Exchange, ended_at: float, is_notable: bool) -> None:
        """`ended_at`: by time.perf_counter. `is_notable`: it failed or was slow."""
        ended = ended_at, exchange, is_notable
        self._recent.append(ended)
        self._new_recent += 1
        if is_notable:
            self._notable.append(ended)
            self._new_notable += 1

    def take(self, now: float) -> tuple[list[RequestRow], list[RequestRow]]:
        """Those that were not taken yet, and of these the ones that failed or were slow; the oldest first.

        `now`: seconds since the epoch.
        """
        offset = now - self._clock()
        recent, notable = _newest(self._recent, self._new_recent), _newest(self._notable, self._new_notable)
        self._new_recent = self._new_notable = 0
        return [self._row(each, offset) for each in recent], [self._row(each, offset) for each in notable]

    def _row(self, ended: _Ended, offset: float) -> RequestRow:
        ended_at, exchange, is_notable = ended
        first_token_at, generation = exchange.first_token_at, exchange.generation
        if generation is None:
            times = [("lookup_ms", 1000 * exchange.lookup_seconds)] if exchange.lookup_seconds else []
        else:
            times = generation_times(exchange, generation, ended_at)
        is_shared = generation is not None and generation.origin.request_id != exchange.request_id
        return RequestRow(
            at=round(ended_at + offset, 3),
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
            ms=round(1000 * (ended_at - exchange.started_at), 3),
            ttft_ms=None if first_token_at is None else round(1000 * (first_token_at - exchange.started_at), 3),
            completion_tokens=exchange.completion_tokens,
            key=exchange.key,
            path=exchange.endpoint.path,
            key_id=exchange.key_id,
            stream=exchange.stream,
            error=exchange.error_reason,
            notable=is_notable,
            times={name: round(value, 3) for name, value in times},
            attempts=() if generation is None else _attempt_rows(generation.attempts, generation.error_reason),
            shared_with=generation.origin.request_id if generation is not None and is_shared else None,
        )


def _newest(ended: deque[_Ended], count: int) -> Iterable[_Ended]:
    """The `count` newest, as far as they are kept; the oldest first."""
    return list(ended)[max(0, len(ended) - count) :]


def _attempt_rows(attempts: list[AttemptFacts], error_reason: str | None) -> tuple[AttemptRow, ...]:
    return tuple(
        AttemptRow(
            engine=attempt.engine,
            result=attempt.error_reason or error_reason or "ok",
            ms=None if attempt.failed_at is None else round(1000 * (attempt.failed_at - attempt.sent_at), 3),
            message=attempt.error_message[:_MAX_MESSAGE],
        )
        for attempt in attempts[-_MAX_ATTEMPTS:]
    )
