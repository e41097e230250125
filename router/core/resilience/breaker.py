"""When an engine gets no work: a state machine over frozen values.

    closed ── failures in a row ──► open ── the cooldown is over ──► half-open ── its one request went well ──► closed
                                     ▲                                   └── it failed ──► open
    closed ── KV cache at or above `open_above` ──► open ── below `close_below`, or no reading any more ──► closed

The two reasons stand beside each other: whichever holds keeps it open. All instants are seconds of one clock, which
nobody should set: a process' monotonic clock. Routers tell one another instants of another clock, see `moved`.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
from msgspec.structs import replace

KV_USAGE_TTL: Final = 10.0
"""Seconds for which a reading of the KV cache holds; what has not been measured since is unknown, and no pressure."""


class BreakerState(Enum):
    """The word is for people."""

    CLOSED = "closed"
    HALF_OPEN = "half-open"
    OPEN = "open"


class BreakerPolicy(msgspec.Struct, frozen=True):
    """`open_above`, `close_below`: shares of the KV cache, 0 to 1; `cooldown` in seconds. See settings.Breaker."""

    open_above: float
    close_below: float
    failures: int
    cooldown: float


class EngineBreaker(msgspec.Struct, frozen=True):
    """One engine's breaker.

    - `failures`: how many there were since the last success, as long as it is closed.
    - `until`: opened for failures, and half-open from then on; None: not opened for failures.
    - `pressed`: opened for pressure, and that is known until then; None: no pressure.
    """

    failures: int = 0
    until: float | None = None
    pressed: float | None = None

    def state(self, now: float) -> BreakerState:
        if self.under_pressure(now) or (self.until is not None and now < self.until):
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN if self.until is not None else BreakerState.CLOSED

    def under_pressure(self, now: float) -> bool:
        return self.pressed is not None and now < self.pressed

    def on_failure(self, now: float, policy: BreakerPolicy, *, probe: bool = False) -> "EngineBreaker":
        """An attempt failed. `probe`: it was the one of a half-open breaker; else it may be news of long ago."""
        if self.until is None and self.failures + 1 < policy.failures:
            return replace(self, failures=self.failures + 1)
        if self.until is None or probe:
            return replace(self, failures=0, until=now + policy.cooldown)
        return self

    def on_success(self, *, probe: bool = False) -> "EngineBreaker":
        """An attempt went well; one that began before the breaker opened does not close it."""
        if self.until is not None:
            return replace(self, until=None) if probe else self
        return replace(self, failures=0) if self.failures else self

    def on_recovered(self, now: float) -> "EngineBreaker":
        """The engine had gone and is back: the rest of the cooldown is not waited for."""
        return replace(self, until=now) if self.until is not None and self.until > now else self

    def on_kv_usage(self, usage: float | None, now: float, policy: BreakerPolicy) -> "EngineBreaker":
        """What the engine says of its KV cache; None is unknown, which neither opens nor keeps open."""
        if usage is None:
            return self if self.pressed is None or self.under_pressure(now) else replace(self, pressed=None)
        if usage >= policy.open_above or (self.under_pressure(now) and usage >= policy.close_below):
            return replace(self, pressed=now + KV_USAGE_TTL)
        return replace(self, pressed=None) if self.pressed is not None else self

    def on_clock(self, convert: Callable[[float], float]) -> "EngineBreaker":
        """The same by another clock; `move` gives that clock's instant for one of this."""
        until = convert(self.until) if self.until is not None else None
        return replace(self, until=until, pressed=convert(self.pressed) if self.pressed is not None else None)

    def merge(self, other: "EngineBreaker", now: float, policy: BreakerPolicy) -> "EngineBreaker":
        """What another router says of the same engine counts; its clock cannot keep the breaker open for longer."""
        return EngineBreaker(
            failures=self.failures if other.until is None else 0,
            until=min(other.until, now + policy.cooldown) if other.until is not None else None,
            pressed=min(other.pressed, now + KV_USAGE_TTL) if other.pressed is not None else None,
        )

    def should_publish(self, other: "EngineBreaker") -> bool:
        """Whether others must hear of it that it is no longer as `other`; how long a reading holds is one's own."""
        return self.until != other.until or (self.pressed is None) != (other.pressed is None)
