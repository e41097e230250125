"""The attempts of one request at the engines of one model, in order, and the waits between them."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Generic, TypeVar

from router.core.resilience.retry import (
    INITIAL_BACKOFF,
    MAX_ATTEMPTS,
    MAX_TIMEOUTS,
    MAX_WAIT,
    ScheduledAttempt,
    classify_failure,
)

T = TypeVar("T")


class RetrySchedule(Generic[T]):
    """The attempts of one request at the engines of one model: each engine once, then retries after waits.

    After `next_attempt`, the caller calls `mark_tried` with the engine that was tried or skipped, and then `on_failure`
    if the attempt failed.
    """

    def __init__(self, engines: Iterable[T]) -> None:
        self._untried = list(engines)
        self._retryable: list[tuple[float, T]] = []  # when the engine may be retried, and the engine
        self._attempt_count = 0
        self._timeout_count = 0
        self._retry_count = 0

    def next_attempt(self, now: float, random: float) -> ScheduledAttempt[T] | None:
        """The next attempt, or None if none is left. `now`: seconds of a monotonic clock; `random`: 0 to 1."""
        if self._attempt_count >= MAX_ATTEMPTS or self._timeout_count >= MAX_TIMEOUTS:
            return None
        if self._untried:  # all of them: admission selects the first with a free slot
            return ScheduledAttempt(tuple(self._untried), 0.0)
        if not self._retryable:
            return None
        not_before, engine = min(self._retryable, key=itemgetter(0))
        # The jitter is added to the Retry-After: otherwise all rejected requests would retry at the same instant.
        wait = max(0.0, not_before - now) + backoff(self._retry_count, random)
        return ScheduledAttempt((engine,), wait) if wait <= MAX_WAIT else None

    def mark_tried(self, engine: T) -> None:
        if engine in self._untried:
            self._untried.remove(engine)
        else:  # a retry; if it fails, on_failure adds the engine again
            self._retryable = [(retry_at, other) for retry_at, other in self._retryable if other != engine]
            self._retry_count += 1

    def leave_only(self, is_left: Callable[[T], bool]) -> None:
        """The other engines get no attempt any more."""
        self._untried = [engine for engine in self._untried if is_left(engine)]
        self._retryable = [(retry_at, engine) for retry_at, engine in self._retryable if is_left(engine)]

    def on_failure(self, engine: T, reason: str, retry_after: float | None, now: float) -> None:
        failure = classify_failure(reason, retry_after)
        self._attempt_count += failure.counts_as_attempt
        self._timeout_count += reason in ("timeout", "slow")
        if failure.may_retry_engine:
            self._retryable.append((now + (retry_after or 0.0), engine))


def backoff(retry_index: int, random: float) -> float:
    """Seconds to wait before a retry, numbered from 0: exponential, with full jitter (`random`: 0 to 1).

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
    """
    return random * min(MAX_WAIT, INITIAL_BACKOFF * 2.0**retry_index)
