"""An engine's own throughput: what it has reached, which is what its present throughput is compared with.

Theory of operation. Throughput is two rates, of generated tokens and of prompt tokens that were computed. When clients
change from short to long prompts, one falls and the other rises; an engine that has become slow has less of both. So
the share of the baseline is the larger one of both shares.

An engine without a queue is only as fast as its clients need. So a higher throughput than the baseline always raises
it, but a lower one lowers it, slowly, only while requests wait. And if requests wait half of the time, a healthy engine
reaches at least half of its baseline. So the present share is compared with how often requests wait.
"""

from typing import Final

import msgspec

from engines.watchdog.observation import Observation

MIN_OBSERVATIONS: Final = 12
"""Observations under load after which a baseline counts: a minute at the default interval."""

_SMOOTHING: Final = 0.2  # the weight of an observation in the present throughput: about five observations
_RISE: Final = 0.3
_FALL: Final = 0.002  # about 40 minutes with an observation each 5 s
_ALWAYS_QUEUED: Final = 0.9  # requests wait so often that the engine is as fast as it can be


class Rates(msgspec.Struct, frozen=True):
    """Tokens per second."""

    generated: float
    prefilled: float

    def towards(self, other: "Rates", rise: float, fall: float) -> "Rates":
        """Moved by a share of the difference; `rise` and `fall` are the shares for a higher and a lower value."""

        def move(old: float, new: float) -> float:
            return old + (rise if new > old else fall) * (new - old)

        return Rates(move(self.generated, other.generated), move(self.prefilled, other.prefilled))


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """`recent` is the present throughput, smoothed; None if the engine is idle. `best` is the throughput it reached.

    `queued`: in which share of the recent observations requests waited. `observations`: how many of those that were
    learnt from, under load.
    """

    recent: Rates | None = None
    queued: float = 0.0
    best: Rates = Rates(0.0, 0.0)
    observations: int = 0

    @property
    def share(self) -> float | None:
        """The present throughput as a share of the baseline; None while the engine is idle or the baseline unknown."""
        if self.recent is None or self.observations < MIN_OBSERVATIONS:
            return None
        pairs = [(self.recent.generated, self.best.generated), (self.recent.prefilled, self.best.prefilled)]
        return max((recent / best for recent, best in pairs if best > 0), default=None)

    def is_below(self, share: float) -> bool:
        """Whether the engine is slower than this share of its baseline because of itself, not for want of requests."""
        return self.share is not None and self.share < share * self.queued

    def follow(self, seen: Observation) -> "Baseline":
        """With the observation in `recent`."""
        if not seen.running and not seen.waiting:
            return self.without_recent()
        if seen.generated is None:
            return self
        new = Rates(seen.generated, seen.prefilled or 0.0)
        waits = 1.0 if seen.waiting else 0.0
        if self.recent is None:
            return msgspec.structs.replace(self, recent=new, queued=waits)
        recent = self.recent.towards(new, _SMOOTHING, _SMOOTHING)
        return msgspec.structs.replace(self, recent=recent, queued=self.queued + _SMOOTHING * (waits - self.queued))

    def without_recent(self) -> "Baseline":
        """For an engine that is idle, or another process."""
        return msgspec.structs.replace(self, recent=None, queued=0.0)

    def learn(self, seen: Observation) -> "Baseline":
        """With `recent` learnt as a throughput of the healthy engine. What an idle engine does is not learnt."""
        if self.recent is None or not seen.running or seen.generated is None:
            return self
        best = self.best.towards(self.recent, _RISE, _FALL if self.queued >= _ALWAYS_QUEUED else 0.0)
        return msgspec.structs.replace(self, best=best, observations=self.observations + 1)
