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

_CLOCK_WAS_SET: Final = 1.0  # seconds between two measurements of the offset to the time of day

_Ended = tuple[
    int, float, Exchange, bool
]  # its number, its end by time.perf_counter, and whether it failed or was slow
_Ring = deque[_Ended]


class LatestRequests:
    """The last requests that have ended, the last that failed, and the last that were slow, also over a reload."""

    def __init__(self, router_id: str, clock: Callable[[], float]) -> None:
        """`clock`: time.perf_counter."""
        self._router_id = router_id
        self._clock = clock
        self._recent: _Ring = deque(maxlen=MAX_KEPT)
        self._failed: _Ring = deque(maxlen=MAX_KEPT)
        self._slow: _Ring = deque(maxlen=MAX_KEPT)
        self._count = self._taken = 0
        # From which number on, and the offset to the time of day. A row that is made again must be the same text, also
        # when the clock was set meanwhile.
        self._offsets: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=8)

    def record(self, exchange: Exchange, ended_at: float, is_notable: bool) -> None:
        """`ended_at`: by time.perf_counter. `is_notable`: it failed or was slow."""
        self._count += 1
        ended = self._count, ended_at, exchange, is_notable
        self._recent.append(ended)
        if is_notable:
            has_failed = exchange.status >= 500 or exchange.outcome == "failed"
            (self._failed if has_failed else self._slow).append(ended)

    def kept(self, now: float) -> list[RequestRow]:
        """All that are kept, the newest first; they count as not taken. `now`: as in `take`."""
        self._set_offset(now)
        ended = {each[0]: each for each in (*self._recent, *self._failed, *self._slow)}
        return [self._row(ended[number]) for number in sorted(ended, reverse=True)]

    def take(self, now: float, *, everything: bool = False) -> tuple[list[RequestRow], list[RequestRow]]:
        """The requests that were not taken yet, and of these the ones that failed or were slow; the oldest first.

        `now`: seconds since the epoch. `everything`: those that were taken, too.
        """
        self._set_offset(now)
        after = 0 if everything else self._taken
        self._taken = self._count
        return self._rows(self._recent, after), self._rows(sorted([*self._failed, *self._slow], key=_number), after)

    def _set_offset(self, now: float) -> None:
        offset = now - self._clock()
        if abs(offset - self._offsets[-1][1]) > _CLOCK_WAS_SET:
            is_first = self._offsets[-1][0] == 0 and self._offsets[-1][1] == 0.0
            self._offsets.append((0 if is_first else self._taken + 1, offset))

    def _rows(self, ring: Iterable[_Ended], after: int) -> list[RequestRow]:
        return [self._row(each) for each in ring if each[0] > after]

    def _row(self, ended: _Ended) -> RequestRow:
        number, ended_at, exchange, is_notable = ended
        offset = next((offset for first, offset in reversed(self._offsets) if number >= first), self._offsets[0][1])
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


def _number(ended: _Ended) -> int:
    return ended[0]


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
