"""Whether an engine takes a request now, from everything that is known of its state."""

from enum import Enum

from router.core.resilience.breaker import BreakerState


class Readiness(Enum):
    """What a request that wants this engine does.

    - READY: it is sent, as soon as there is a slot.
    - PROBING: a half-open engine has its one request. Others wait for what that shows, or go to another engine.
    - DOWN: its last check or connection failed. It is tried only by requests without a better engine, since it may be
      back, and a failed connection costs little.
    - BLOCKED: no request is sent, because an operator has drained it, its breaker is open, or it refuses the router's
      key.
    """

    READY = "ready"
    PROBING = "probing"
    DOWN = "down"
    BLOCKED = "blocked"


def engine_readiness(
    *, up: bool | None, drained: bool, breaker: BreakerState, in_flight: int, refused: bool = False
) -> Readiness:
    """`up`: None before the first check. `in_flight`: requests of this process, and a known probe of another."""
    if drained or refused or breaker is BreakerState.OPEN:
        return Readiness.BLOCKED
    if up is False:
        return Readiness.DOWN
    if breaker is BreakerState.HALF_OPEN and in_flight:
        return Readiness.PROBING
    return Readiness.READY
