"""Who is asked again, when, and how often: decisions about attempts that failed before the first token."""

from collections.abc import Iterable
from email.utils import mktime_tz, parsedate_tz
from math import exp
from operator import itemgetter
from typing import Final, Generic, TypeVar

import msgspec

INITIAL_BACKOFF: Final = 0.1
"""Seconds: the most that is waited before an engine is asked a second time; it doubles from then on."""

MAX_WAIT: Final = 2.0
"""Seconds: the most that a request waits between two attempts, whatever an engine asks for."""

MAX_ATTEMPTS: Final = 3
"""Attempts at the engines of one model that a request may have; one that did not connect is none."""

MAX_TIMEOUTS: Final = 2
"""Attempts that may run into a limit of time: a third would only make the client wait longer."""

MAX_RETRY_AFTER: Final = 60.0
"""Seconds: for longer than that no engine is taken at its word."""


class FailureClass(msgspec.Struct, frozen=True):
    """What an attempt that failed means.

    - `counts`: for the engine's breaker. `busy`: the engine has too much to do.
    - `again`: the same engine may be asked once more by the same request.
    - `cost`: the attempt may have cost the engine work, so that another one is paid for from the budget.
    - `attempt`: it is one of the request's MOST_ATTEMPTS.
    """

    counts_for_breaker: bool = True
    engine_busy: bool = False
    may_retry_engine: bool = True
    uses_retry_budget: bool = True
    counts_as_attempt: bool = True


_NOT_ENGINE_FAILURE: Final = FailureClass(counts_for_breaker=False, may_retry_engine=False, uses_retry_budget=False)


def classify_failure(reason: str, retry_after: float | None) -> FailureClass:
    """`reason` is an EngineError's; `retry_after`, in seconds, what the engine said with it.

    A 429, and a 503 that says when to come back, are an engine's way to say that it is well and busy. A 503 that does
    not say may as well be a proxy before an engine that is gone.
    """
    match reason:
        case "connect":
            return FailureClass(may_retry_engine=False, uses_retry_budget=False, counts_as_attempt=False)
        case "local":  # the router has no descriptor or port left, which says nothing of the engine
            return FailureClass(
                counts_for_breaker=False, may_retry_engine=False, uses_retry_budget=False, counts_as_attempt=False
            )
        case "refused" | "too-large":  # the client's own fault, and a limit of ours
            return _NOT_ENGINE_FAILURE
        case "timeout":
            return FailureClass(may_retry_engine=False)
        case "status-429":
            return FailureClass(counts_for_breaker=False, engine_busy=True)
        case "status-404" | "status-405" | "status-501":  # it lacks what the request names; another one may have it
            return _NOT_ENGINE_FAILURE
        case "status-503":
            return FailureClass(counts_for_breaker=retry_after is None, engine_busy=True)
        case _ if reason.startswith("status-") and not reason.startswith("status-5"):
            return FailureClass(counts_for_breaker=False, may_retry_engine=False)
        case _:
            return FailureClass()


T = TypeVar("T")


class Attempt(msgspec.Struct, Generic[T], frozen=True):
    """Whose turn it is: any of these engines, the best first, once so many seconds have been waited."""

    engines: tuple[T, ...]
    wait: float


class RetrySchedule(Generic[T]):
    """The turns of one model's engines at one request: each once, then those that may be asked again, with waits.

    After each `next`, `took` says which one had its turn, whether it was asked or left out; and `failed`, that it
    failed.
    """

    def __init__(self, engines: Iterable[T]) -> None:
        self._untried = list(engines)
        self._retryable: list[tuple[float, T]] = []
        self._attempt_count = 0
        self._timeout_count = 0
        self._retry_count = 0

    def next_attempt(self, now: float, random: float) -> Attempt[T] | None:
        """`now` in seconds of one clock; `random`: 0 to 1. None: it is over."""
        if self._attempt_count >= MAX_ATTEMPTS or self._timeout_count >= MAX_TIMEOUTS:
            return None
        if self._untried:
            return Attempt(tuple(self._untried), 0.0)
        if not self._retryable:
            return None
        first, engine = min(self._retryable, key=itemgetter(0))
        # Obeyed first and spread out then, lest all that were sent away come back together.
        wait = max(0.0, first - now) + backoff(self._retry_count, random)
        return Attempt((engine,), wait) if wait <= MAX_WAIT else None

    def mark_tried(self, engine: T) -> None:
        if engine in self._untried:
            self._untried.remove(engine)
        else:
            self._retryable = [(at, other) for at, other in self._retryable if other != engine]
            self._retry_count += 1

    def on_failure(self, engine: T, reason: str, retry_after: float | None, now: float) -> None:
        failed = classify_failure(reason, retry_after)
        self._attempt_count += failed.counts_as_attempt
        self._timeout_count += reason == "timeout"
        if failed.may_retry_engine:
            self._retryable.append((now + (retry_after or 0.0), engine))


def backoff(retry_index: int, random: float) -> float:
    """Seconds before the retry of that number, from 0 on: exponential, with full jitter.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
    """
    return random * min(MAX_WAIT, INITIAL_BACKOFF * 2.0**retry_index)


class RetryBudget:
    """How many retries there may be: a share of the requests, and a few a second in any case.

    A bucket of tokens that leaks: what was not used is forgotten over `WINDOW` seconds, so that a calm hour does not
    pay for a storm. Source of the idea: Finagle's RetryBudget.
    """

    RETRY_RATIO: Final = 0.2
    MIN_RETRIES_PER_SECOND: Final = 5.0
    WINDOW: Final = 30.0

    def __init__(self, now: float) -> None:
        """`now`, here and below, in seconds of one clock that does not go back."""
        self._tokens = self.MIN_RETRIES_PER_SECOND * self.WINDOW
        self._updated_at = now

    def on_request(self, now: float) -> None:
        """A request has come."""
        self._decay(now)
        self._tokens += self.RETRY_RATIO

    def try_acquire(self, now: float) -> bool:
        """Whether one more retry may be; it is taken then."""
        self._decay(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _decay(self, now: float) -> None:
        left = exp(-max(0.0, now - self._updated_at) / self.WINDOW)
        self._tokens = self._tokens * left + self.MIN_RETRIES_PER_SECOND * self.WINDOW * (1.0 - left)
        self._updated_at = max(self._updated_at, now)


def parse_retry_after(text: str | None, now: float) -> float | None:
    """Seconds from `now`, an instant since the epoch, that a Retry-After asks for, at most LONGEST_RETRY_AFTER.

    It has seconds or a date (RFC 9110, section 10.2.3); None for what has neither.
    """
    if text is None or len(text) > 64:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER)
    date = parsedate_tz(text)
    if date is None:
        return None
    try:
        return min(max(0.0, mktime_tz(date) - now), MAX_RETRY_AFTER)
    except (ValueError, OverflowError):
        return None
