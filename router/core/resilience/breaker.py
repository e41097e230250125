"""The circuit breaker of an engine: a state machine over frozen values.

    closed ── consecutive failures ──► open ── cooldown elapsed ──► half-open ── probe succeeded ──► closed
                                        ▲                               └── probe failed ──► open
    closed ── KV cache usage at `open_above` or more ──► open ── below `close_below`, or reading expired ──► closed

The two conditions are independent: the breaker is open while either holds. All instants are seconds of the process'
monotonic clock. Routers exchange instants of Redis' clock; `on_clock` converts them.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
from msgspec.structs import replace

KV_USAGE_TTL: Final = 10.0
"""Seconds for which a reading of the KV cache is valid; after that the usage is unknown, which is not pressure."""


class BreakerState(Enum):
    CLOSED = "closed"
    HALF_OPEN = "half-open"
    OPEN = "open"


class BreakerPolicy(msgspec.Struct, frozen=True):
    """See settings.BreakerSettings.

    - `open_above`, `close_below`: shares of the KV cache, 0 to 1. They differ, so that the breaker does not flap.
    - `failures`: how many in a row open the breaker.
    - `cooldown`: in seconds.
    """

    open_above: float
    close_below: float
    failures: int
    cooldown: float


class EngineBreaker(msgspec.Struct, frozen=True):
    """One engine's breaker, also its JSON in Redis.

    - `failures`: consecutive failures while it is closed.
    - `until`: open for failures until this instant, then half-open; None: not open for failures.
    - `pressed`: open for KV cache pressure until this instant, when the reading expires; None: no pressure.
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
        """An attempt failed. `probe`: it was the one request of a half-open breaker."""
        if self.until is None and self.failures + 1 < policy.failures:
            return replace(self, failures=self.failures + 1)
        if self.until is None or probe:
            return replace(self, failures=0, until=now + policy.cooldown)
        # Open or half-open already: the attempt began before that, so its failure does not prolong the cooldown.
        return self

    def on_success(self, *, probe: bool = False) -> "EngineBreaker":
        if self.until is not None:
            # Only the probe closes it: any other attempt began before the breaker opened.
            return replace(self, until=None) if probe else self
        return replace(self, failures=0) if self.failures else self

    def on_recovered(self, now: float) -> "EngineBreaker":
        """The engine was down and is up again: skips the rest of the cooldown."""
        return replace(self, until=now) if self.until is not None and self.until > now else self

    def on_kv_usage(self, usage: float | None, now: float, policy: BreakerPolicy) -> "EngineBreaker":
        """A new reading of the engine's KV cache usage, 0 to 1; None is unknown."""
        if usage is None:  # does not open the breaker, and keeps it open only until the last reading expires
            return self if self.pressed is None or self.under_pressure(now) else replace(self, pressed=None)
        if usage >= policy.open_above or (self.under_pressure(now) and usage >= policy.close_below):
            return replace(self, pressed=now + KV_USAGE_TTL)
        return replace(self, pressed=None) if self.pressed is not None else self

    def on_clock(self, convert: Callable[[float], float]) -> "EngineBreaker":
        """The same breaker with its instants converted to another clock."""
        until = convert(self.until) if self.until is not None else None
        return replace(self, until=until, pressed=convert(self.pressed) if self.pressed is not None else None)

    def merge(self, other: "EngineBreaker", now: float, policy: BreakerPolicy) -> "EngineBreaker":
        """The breaker after another router has published its own as `other`."""
        # min: an instant from a wrong clock must not keep the breaker open for longer than a cooldown or a reading.
        return EngineBreaker(
            failures=self.failures if other.until is None else 0,
            until=min(other.until, now + policy.cooldown) if other.until is not None else None,
            pressed=min(other.pressed, now + KV_USAGE_TTL) if other.pressed is not None else None,
        )

    def should_publish(self, other: "EngineBreaker") -> bool:
        """Whether other routers need to know of a change from `other` to this."""
        # Each router reads the KV cache itself, so only the beginning and the end of pressure count, not its instant.
        return self.until != other.until or (self.pressed is None) != (other.pressed is None)
