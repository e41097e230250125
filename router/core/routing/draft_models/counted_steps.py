"""Steps and accepted draft tokens as vLLM's counters give them: for all work of an engine together."""

from typing import Final

import msgspec

from router.core.routing.draft_models.speeds import HALF_LIFE

MIN_STEPS: Final = 100.0
"""Total weight of steps from which on the tokens per step of a family are known."""


class SpeculationCounters(msgspec.Struct, frozen=True):
    """Steps with a draft, and accepted draft tokens: of an engine since its start, or of one request."""

    steps: float
    accepted: float


class _DecayingSteps(msgspec.Struct):
    steps: float = 0.0
    accepted: float = 0.0
    updated_at: float = 0.0


class CountedSteps:
    """What the engines counted between probes. `now` is in seconds of one monotonic clock.

    Its size is bounded by the number of engines.
    """

    def __init__(self) -> None:
        self._last: dict[str, SpeculationCounters] = {}  # by engine
        self._recent: dict[str, _DecayingSteps] = {}  # by family

    def advance(
        self, engine: str, family: str, counters: SpeculationCounters, now: float
    ) -> SpeculationCounters | None:
        """Takes the counters of a probe, and returns what was added since the last; None if that is unknown."""
        previous = self._last.get(engine)
        self._last[engine] = counters
        if previous is None:
            return None
        if counters.steps < previous.steps or counters.accepted < previous.accepted:  # the engine was restarted
            previous = SpeculationCounters(0, 0)
        added = SpeculationCounters(counters.steps - previous.steps, counters.accepted - previous.accepted)
        recent = self._recent.setdefault(family, _DecayingSteps())
        remaining = _remaining_share(recent, now)
        recent.steps = recent.steps * remaining + added.steps
        recent.accepted = recent.accepted * remaining + added.accepted
        recent.updated_at = now
        return added

    def tokens_per_step(self, family: str, now: float) -> float | None:
        recent = self._recent.get(family)
        if recent is None or recent.steps * _remaining_share(recent, now) < MIN_STEPS:
            return None
        return 1 + recent.accepted / recent.steps


def _remaining_share(recent: _DecayingSteps, now: float) -> float:
    return float(0.5 ** (max(0.0, now - recent.updated_at) / HALF_LIFE))
