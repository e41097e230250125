"""Retries before the first token: which engine is tried next, after which wait, and how many attempts are made."""

from email.utils import mktime_tz, parsedate_tz
from typing import Final, Generic, TypeVar

import msgspec

INITIAL_BACKOFF: Final = 0.1
"""Upper bound of the wait before the first retry of an engine, in seconds; it doubles with each retry."""

MAX_WAIT: Final = 2.0
"""Maximum wait between two attempts, in seconds. An engine with a longer Retry-After is not retried."""

MAX_ATTEMPTS: Final = 3
"""Maximum number of attempts per request and model; attempts that did not connect do not count."""

MAX_TIMEOUTS: Final = 2
"""Maximum number of attempts that time out: after two, a third would mostly prolong the client's wait."""

CONTINUATIONS_PER_SECOND: Final = 20.0
"""The minimum rate of the retry budget of continued streams: an engine that dies can have hundreds of them at once."""

MAX_RETRY_AFTER: Final = 60.0
"""Longer Retry-After values of an engine are reduced to this, in seconds."""


CREDENTIAL_REASONS: Final = ("status-401", "status-403", "status-407")
"""The `EngineError.reason` of an engine that refuses the router's own credentials."""


class FailureClass(msgspec.Struct, frozen=True):
    """The consequences of a failed attempt.

    - `counts_for_breaker`: the circuit breaker counts it as a failure of the engine.
    - `engine_busy`: the engine is healthy but overloaded.
    - `may_retry_engine`: this request may try the same engine again.
    - `uses_retry_budget`: the engine may have worked on it, so the next attempt takes a token of the retry budget.
    - `counts_as_attempt`: it counts towards MAX_ATTEMPTS.
    """

    counts_for_breaker: bool = True
    engine_busy: bool = False
    may_retry_engine: bool = True
    uses_retry_budget: bool = True
    counts_as_attempt: bool = True


_NOT_ENGINE_FAILURE: Final = FailureClass(counts_for_breaker=False, may_retry_engine=False, uses_retry_budget=False)


def classify_failure(reason: str, retry_after: float | None) -> FailureClass:
    """`reason`: EngineError.reason; `retry_after`: the engine's Retry-After in seconds."""
    match reason:
        case "connect":
            return FailureClass(may_retry_engine=False, uses_retry_budget=False, counts_as_attempt=False)
        case "local":  # the router has no file descriptor, port or memory left; the engine is not involved
            return FailureClass(
                counts_for_breaker=False, may_retry_engine=False, uses_retry_budget=False, counts_as_attempt=False
            )
        case "refused" | "too-large" | "unparsed":  # an error of the client; a limit of the router; a missing option
            return _NOT_ENGINE_FAILURE
        case "diverged":  # it did not repeat what the client has; without that to repeat, it may go on
            return FailureClass(counts_for_breaker=False, uses_retry_budget=False)
        case "timeout" | "lost":
            return FailureClass(may_retry_engine=False)
        case "slow":  # the engine works for others
            return FailureClass(counts_for_breaker=False, may_retry_engine=False)
        case "status-429" | "status-529":  # 529: Anthropic is overloaded
            return FailureClass(counts_for_breaker=False, engine_busy=True)
        case "status-404" | "status-405" | "status-501":  # this engine lacks the model or feature; another may have it
            return _NOT_ENGINE_FAILURE
        case "status-503":
            # With Retry-After, the engine is overloaded. Without, the response may be from a proxy of a dead engine.
            return FailureClass(counts_for_breaker=retry_after is None, engine_busy=True)
        case "status-401" | "status-407":  # it refuses the router's key. A 403 may be about this request
            return FailureClass(may_retry_engine=False)
        case "status-424":  # TGI: the generation has failed. Any other 424 is a refusal of the request
            return FailureClass()
        case _ if reason.startswith("status-") and not reason.startswith("status-5"):
            # For example 403: another request may be fine.
            return FailureClass(counts_for_breaker=False, may_retry_engine=False)
        case _:
            return FailureClass()


T = TypeVar("T")


class ScheduledAttempt(msgspec.Struct, Generic[T], frozen=True):
    """The next attempt: after `wait` seconds, at one of `engines`, which are in order of preference."""

    engines: tuple[T, ...]
    wait: float


def parse_retry_after(text: str | None, now: float) -> float | None:
    """The seconds of a Retry-After header, at most MAX_RETRY_AFTER; None if it is missing or invalid.

    The value is a number of seconds or a date (RFC 9110, section 10.2.3). `now`: seconds since the epoch.
    """
    if text is None or len(text) > 64:  # longer than any valid value
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER)
    date = parsedate_tz(text)
    if date is None:
        return None
    try:
        return min(max(0.0, mktime_tz(date) - now), MAX_RETRY_AFTER)
    except (ValueError, OverflowError):  # a date with fields out of range
        return None
