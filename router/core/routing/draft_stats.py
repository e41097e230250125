"""Measures each engine's draft model: how fast it makes the engine at each task, and whether it pays off.

Theory. vLLM's counters give an engine's steps and accepted draft tokens, but not by kind of request. So the main
measure is what this router observes itself: tokens per second of its own generations, by task. The counters add the
tokens per step. Those between two probes are attributed to a task if nearly all generations that ended in between were
of that task.

All measurements decay with `HALF_LIFE`. So a replaced draft or changed prompts show soon, and an engine that gets no
more requests becomes unknown after a while, and is tried again.

Replicas have the same draft; together they are one *family* here. `now` is in seconds of one monotonic clock.
"""

from collections.abc import Iterable, Mapping
from math import exp, hypot, log, sqrt
from typing import Final, NamedTuple

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.types import Task

HALF_LIFE: Final = 600.0
"""Seconds after which a measurement has half its weight."""

MIN_GENERATIONS: Final = 12.0
"""Total weight of generations from which on a speed is known; a new generation has weight 1."""

MIN_STEPS: Final = 100.0
"""Total weight of steps from which on the tokens per step are known."""

SPEED_MARGIN: Final = 1.2
"""Ratio of speeds from which on an engine is clearly faster than another."""

MIN_TOKENS_PER_STEP: Final = 1.15
"""Tokens per step below which a draft does not pay off: the draft itself costs more than a seventh of a step."""

_STANDARD_ERRORS: Final = 2.0  # by how many standard errors speeds must differ, so that it is not chance
_MIN_ANSWER_TOKENS: Final = 8  # a shorter response says little about the speed
_DOMINANT_SHARE: Final = 0.9  # the share of a task's tokens from which on a probe's counters are attributed to it
# Hysteresis: a draft that stopped paying off must be better than the threshold by this, so that it does not flap.
_RECOVERY_MARGIN: Final = 0.1
_SAMPLING_EPSILON: Final = 1e-5  # vLLM treats a temperature or min_p below it as 0


def unsupported_fields(request: InferenceRequest) -> tuple[str, ...]:
    """The fields of a request that vLLM refuses with speculative decoding.

    Source: SamplingParams._validate_spec_decode of vLLM 0.32: "The min_p and logit_bias sampling parameters are not yet
    supported with speculative decoding". With greedy sampling, min_p has no effect and is accepted.
    """
    if not request.endpoint.applies_logit_fields:
        return ()
    fields = request.fields
    min_p, logit_bias = fields.get("min_p"), fields.get("logit_bias")
    if not min_p and not logit_bias:
        return ()
    temperature = fields.get("temperature")
    greedy = isinstance(temperature, int | float) and temperature < _SAMPLING_EPSILON
    unsupported = []
    if isinstance(min_p, int | float) and min_p > _SAMPLING_EPSILON and not greedy:
        unsupported.append("min_p")
    if logit_bias:
        unsupported.append("logit_bias")
    return tuple(unsupported)


class SpeculationCounters(msgspec.Struct, frozen=True):
    """vLLM's counters of an engine since its start: steps, and accepted draft tokens."""

    steps: float
    accepted: float


class DraftPerformance(msgspec.Struct, frozen=True):
    """The measured performance of a family at a task; None is unknown.

    - `tokens_per_second`: of one request, from dispatch to its last token.
    - `tokens_per_step`: one token of the target model, plus the accepted draft tokens.
    """

    tokens_per_second: float | None = None
    tokens_per_step: float | None = None


def _remaining_share(seconds: float) -> float:
    return float(0.5 ** (max(0.0, seconds) / HALF_LIFE))


class _DecayingRatio:
    """The ratio of two decaying sums, and its decaying weight."""

    __slots__ = ("_denominator", "_numerator", "_updated_at", "_weight")

    def __init__(self) -> None:
        self._numerator = self._denominator = self._weight = 0.0
        self._updated_at = 0.0

    def add(self, numerator: float, denominator: float, weight: float, now: float) -> None:
        remaining = _remaining_share(now - self._updated_at)
        self._numerator = self._numerator * remaining + numerator
        self._denominator = self._denominator * remaining + denominator
        self._weight = self._weight * remaining + weight
        self._updated_at = now

    def weight(self, now: float) -> float:
        return self._weight * _remaining_share(now - self._updated_at)

    def ratio(self, now: float, min_weight: float) -> float | None:
        return self._numerator / self._denominator if self._denominator > 0 and self.weight(now) >= min_weight else None


class _Estimate(NamedTuple):
    """The mean of logarithms of speeds, and its standard error."""

    mean: float
    standard_error: float

    def is_clearly_above(self, other: "_Estimate", margin: float) -> bool:
        difference = self.mean - other.mean
        return difference >= margin and difference >= _STANDARD_ERRORS * hypot(
            self.standard_error, other.standard_error
        )


class _DecayingSpeeds:
    """Decaying statistics of generation speeds, as logarithms: a stalled generation must not outweigh all others."""

    __slots__ = ("_count", "_squares", "_sum", "_updated_at")

    def __init__(self) -> None:
        self._count = self._sum = self._squares = 0.0
        self._updated_at = 0.0

    def add(self, tokens_per_second: float, now: float) -> None:
        value, remaining = log(tokens_per_second), _remaining_share(now - self._updated_at)
        self._count = self._count * remaining + 1.0
        self._sum = self._sum * remaining + value
        self._squares = self._squares * remaining + value * value
        self._updated_at = now

    def count(self, now: float) -> float:
        return self._count * _remaining_share(now - self._updated_at)

    def estimate(self, now: float) -> _Estimate | None:
        count = self.count(now)
        if count < MIN_GENERATIONS:
            return None
        # The three sums decay alike, so their ratios need no decay. max: rounding can make the variance negative.
        mean = self._sum / self._count
        return _Estimate(mean, sqrt(max(0.0, self._squares / self._count - mean * mean) / count))


class DraftStats:
    """The measurements of one router process. Its size is bounded by the number of families, engines and tasks."""

    def __init__(self) -> None:
        self._speeds: dict[tuple[str, Task], _DecayingSpeeds] = {}  # by family
        self._steps: dict[tuple[str, Task | None], _DecayingRatio] = {}  # by family; None: all tasks together
        self._last_counters: dict[str, SpeculationCounters] = {}  # by engine
        self._tokens_since_probe: dict[str, dict[Task, int]] = {}  # by engine

    def record_generation(self, engine: str, family: str, task: Task, tokens: int, seconds: float, now: float) -> None:
        """A generation of `tokens` ended; `seconds`: its whole duration at the engine."""
        # The time from the first token on would say more about the draft. But tokens that arrive late arrive together,
        # and then that time is close to zero.
        tokens_by_task = self._tokens_since_probe.setdefault(engine, {})
        tokens_by_task[task] = tokens_by_task.get(task, 0) + tokens
        if tokens >= _MIN_ANSWER_TOKENS and seconds > 0:
            speeds = self._speeds.get((family, task))
            if speeds is None:
                speeds = self._speeds[family, task] = _DecayingSpeeds()
            speeds.add(tokens / seconds, now)

    def record_counters(self, engine: str, family: str, counters: SpeculationCounters, now: float) -> None:
        previous = self._last_counters.get(engine)
        self._last_counters[engine] = counters
        tokens_by_task = self._tokens_since_probe.pop(engine, {})
        if previous is None:
            return
        if counters.steps < previous.steps or counters.accepted < previous.accepted:  # the engine was restarted
            previous = SpeculationCounters(0, 0)
        steps, accepted = counters.steps - previous.steps, counters.accepted - previous.accepted
        if steps <= 0:
            return
        self._steps.setdefault((family, None), _DecayingRatio()).add(steps + accepted, steps, steps, now)
        total = sum(tokens_by_task.values())
        for task, tokens in tokens_by_task.items():
            # Half of the engine's tokens must be this router's own: the task of other clients' requests is unknown.
            if tokens >= _DOMINANT_SHARE * total and 2 * total >= steps + accepted:
                self._steps.setdefault((family, task), _DecayingRatio()).add(steps + accepted, steps, steps, now)

    def performance(self, family: str, task: Task, now: float) -> DraftPerformance:
        """The tokens per step are those of all tasks together if they are unknown for this one."""
        speed = self._estimate(family, task, now)
        ratios = [
            self._steps[key].ratio(now, MIN_STEPS) for key in ((family, task), (family, None)) if key in self._steps
        ]
        return DraftPerformance(
            exp(speed.mean) if speed is not None else None,  # the geometric mean
            next((ratio for ratio in ratios if ratio is not None), None),
        )

    def slow_families(self, families: Iterable[str], task: Task, now: float) -> frozenset[str]:
        known = self._estimates(families, task, now)
        return frozenset(name for name in known if _is_slower(name, known, SPEED_MARGIN))

    def least_measured(self, families: Iterable[str], task: Task, now: float) -> str | None:
        """The family with the fewest measurements at a task, for exploration; None until another family is known."""
        weights = {}
        for family in families:
            speeds = self._speeds.get((family, task))
            weights[family] = speeds.count(now) if speeds is not None else 0.0
        if len(weights) < 2 or max(weights.values()) < MIN_GENERATIONS:
            return None
        return min(weights, key=lambda family: (weights[family], family))

    def pays(
        self, family: str, families: Iterable[str], task: Task, now: float, previously: bool | None
    ) -> bool | None:
        """Whether a family's draft pays off at a task; None is unknown. `previously`: the last result.

        It does not if a step yields hardly more than one token, or if another family of the model is clearly faster.
        """
        recovery_margin = _RECOVERY_MARGIN if previously is False else 0.0
        verdicts = []
        per_step = self.performance(family, task, now).tokens_per_step
        if per_step is not None:
            verdicts.append(per_step >= MIN_TOKENS_PER_STEP + recovery_margin)
        known = self._estimates((family, *families), task, now)
        if family in known and len(known) > 1:
            verdicts.append(not _is_slower(family, known, SPEED_MARGIN - recovery_margin))
        return all(verdicts) if verdicts else None

    def _estimates(self, families: Iterable[str], task: Task, now: float) -> dict[str, _Estimate]:
        estimates = {family: self._estimate(family, task, now) for family in families}
        return {family: speed for family, speed in estimates.items() if speed is not None}

    def _estimate(self, family: str, task: Task, now: float) -> _Estimate | None:
        speeds = self._speeds.get((family, task))
        return speeds.estimate(now) if speeds is not None else None


def _is_slower(family: str, known: Mapping[str, _Estimate], margin: float) -> bool:
    return any(other.is_clearly_above(known[family], log(margin)) for other in known.values())
