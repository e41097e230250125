"""What is learned of each engine's draft: how fast it makes the engine at each task, and whether it still pays.

Theory. vLLM's counters say of an engine how many steps it took and how many draft tokens they had accepted, but not of
what kind of request. So what counts is what this router sees itself: the tokens a second of its own generations, by
task. The counters tell the rest: what was accepted between two probes belongs to a task if nearly all that ended
meanwhile was of that task.

Everything fades: half of it is gone after `HALF_LIFE`. So a draft that was exchanged, or prompts that have changed,
show soon; and an engine that is asked no more is at last unknown, and gets its chance again.

Replicas have the same draft and are one *family* here. Clocks are arguments; nothing here waits.
"""

from collections.abc import Iterable, Mapping
from math import exp, hypot, log, sqrt
from typing import Final, NamedTuple

import msgspec

from router.core.endpoints.request import InferenceRequest
from router.core.types import Endpoint, Task

HALF_LIFE: Final = 600.0
"""Seconds after which half of what was seen has faded."""

MIN_GENERATIONS: Final = 12.0
"""Generations, faded ones counted by what is left of them, from which on a speed is known."""

MIN_STEPS: Final = 100.0
"""Steps of an engine from which on its accepted tokens are known."""

SPEED_MARGIN: Final = 1.2
"""How many times as fast another engine must be to be clearly faster."""

MIN_TOKENS_PER_STEP: Final = 1.15
"""Tokens a step under which a draft does not pay: it costs more than a seventh of a step itself."""

_STANDARD_ERRORS: Final = 2.0  # standard errors by which speeds must differ, lest it be chance
_MIN_ANSWER_TOKENS: Final = 8  # tokens; a shorter answer says little of the speed
_DOMINANT_SHARE: Final = 0.9  # the share of one task, from which on a probe's counts are taken to be of it
_RECOVERY_MARGIN: Final = (
    0.1  # by how much things must be better than where a draft stopped paying, for it to pay again
)
_SAMPLING_ENDPOINTS: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES)
_SAMPLING_EPSILON: Final = 1e-5  # vLLM takes a temperature or min_p below it for 0


def unsupported_fields(request: InferenceRequest) -> tuple[str, ...]:
    """The fields of a request for which vLLM refuses it where it speculates.

    Source: SamplingParams._validate_spec_decode of vLLM 0.32: "The min_p and logit_bias sampling parameters are not yet
    supported with speculative decoding". Greedy sampling has no use for min_p, and passes over it.
    """
    if request.endpoint not in _SAMPLING_ENDPOINTS:
        return ()  # the others pass over these fields
    fields = request.fields
    min_p, logit_bias = fields.get("min_p"), fields.get("logit_bias")
    if not min_p and not logit_bias:
        return ()
    temperature = fields.get("temperature")
    greedy = isinstance(temperature, int | float) and temperature < _SAMPLING_EPSILON
    refused = []
    if isinstance(min_p, int | float) and min_p > _SAMPLING_EPSILON and not greedy:
        refused.append("min_p")
    if logit_bias:
        refused.append("logit_bias")
    return tuple(refused)


class SpeculationCounters(msgspec.Struct, frozen=True):
    """An engine's counters, since its start."""

    steps: float
    accepted: float


class DraftPerformance(msgspec.Struct, frozen=True):
    """What is known of a family at a task; None is unknown.

    - `tokens_per_second`: of one request, from when it was sent to its last token.
    - `tokens_per_step`: one of the target's own, and the draft's that were accepted.
    """

    tokens_per_second: float | None = None
    tokens_per_step: float | None = None


def _remaining_share(seconds: float) -> float:
    """The share that is left after so many seconds."""
    return float(0.5 ** (max(0.0, seconds) / HALF_LIFE))


class _DecayingRatio:
    """A ratio of two sums, both of which fade, and how much there is of it."""

    __slots__ = ("_denominator", "_numerator", "_updated_at", "_weight")

    def __init__(self) -> None:
        self._numerator = self._denominator = self._weight = 0.0
        self._updated_at = 0.0

    def add(self, numerator: float, denominator: float, weight: float, now: float) -> None:
        left = _remaining_share(now - self._updated_at)
        self._numerator = self._numerator * left + numerator
        self._denominator = self._denominator * left + denominator
        self._weight = self._weight * left + weight
        self._updated_at = now

    def weight(self, now: float) -> float:
        return self._weight * _remaining_share(now - self._updated_at)

    def ratio(self, now: float, min_weight: float) -> float | None:
        return self._numerator / self._denominator if self._denominator > 0 and self.weight(now) >= min_weight else None


class _Estimate(NamedTuple):
    """The mean of what was seen, and the standard error of that."""

    mean: float
    standard_error: float

    def is_clearly_above(self, other: "_Estimate", margin: float) -> bool:
        """Whether it is at least `by` more, and more than chance would explain."""
        difference = self.mean - other.mean
        return difference >= margin and difference >= _STANDARD_ERRORS * hypot(
            self.standard_error, other.standard_error
        )


class _DecayingSpeeds:
    """The speeds of single generations, as logarithms: one that stalls must not outweigh all the others."""

    __slots__ = ("_count", "_squares", "_sum", "_updated_at")

    def __init__(self) -> None:
        self._count = self._sum = self._squares = 0.0
        self._updated_at = 0.0

    def add(self, tokens_per_second: float, now: float) -> None:
        value, left = log(tokens_per_second), _remaining_share(now - self._updated_at)
        self._count = self._count * left + 1.0
        self._sum = self._sum * left + value
        self._squares = self._squares * left + value * value
        self._updated_at = now

    def count(self, now: float) -> float:
        """How many there are, faded ones by what is left of them."""
        return self._count * _remaining_share(now - self._updated_at)

    def estimate(self, now: float) -> _Estimate | None:
        count = self.count(now)
        if count < MIN_GENERATIONS:
            return None
        mean = self._sum / self._count
        return _Estimate(mean, sqrt(max(0.0, self._squares / self._count - mean * mean) / count))


class DraftStats:
    """What one router has learned. Its size is bounded by the families and tasks that there are."""

    def __init__(self) -> None:
        self._speeds: dict[tuple[str, Task], _DecayingSpeeds] = {}
        self._steps: dict[tuple[str, Task | None], _DecayingRatio] = {}
        self._last_counters: dict[str, SpeculationCounters] = {}
        self._tokens_since_probe: dict[str, dict[Task, int]] = {}

    def record_generation(self, engine: str, family: str, task: Task, tokens: int, seconds: float, now: float) -> None:
        """A generation of `tokens` ended; `seconds` is all that it took at the engine.

        The time from the first token on would tell more of the draft, but tokens that come late come together, and then
        it is next to nothing.
        """
        ended = self._tokens_since_probe.setdefault(engine, {})
        ended[task] = ended.get(task, 0) + tokens
        if tokens >= _MIN_ANSWER_TOKENS and seconds > 0:
            speeds = self._speeds.get((family, task))
            if speeds is None:
                speeds = self._speeds[family, task] = _DecayingSpeeds()
            speeds.add(tokens / seconds, now)

    def record_counters(self, engine: str, family: str, counters: SpeculationCounters, now: float) -> None:
        """An engine's counters were read. Whoever has less than before has been started anew."""
        before = self._last_counters.get(engine)
        self._last_counters[engine] = counters
        ended = self._tokens_since_probe.pop(engine, {})
        if before is None:
            return
        if counters.steps < before.steps or counters.accepted < before.accepted:
            before = SpeculationCounters(0, 0)
        steps, accepted = counters.steps - before.steps, counters.accepted - before.accepted
        if steps <= 0:
            return
        self._steps.setdefault((family, None), _DecayingRatio()).add(steps + accepted, steps, steps, now)
        total = sum(ended.values())
        for task, tokens in ended.items():
            # What others had the engine do is of nobody knows what kind.
            if tokens >= _DOMINANT_SHARE * total and 2 * total >= steps + accepted:
                self._steps.setdefault((family, task), _DecayingRatio()).add(steps + accepted, steps, steps, now)

    def performance(self, family: str, task: Task, now: float) -> DraftPerformance:
        """What is known; the tokens a step are those of all tasks where they are not known of this one."""
        speed = self._estimate(family, task, now)
        found = [
            self._steps[key].ratio(now, MIN_STEPS) for key in ((family, task), (family, None)) if key in self._steps
        ]
        return DraftPerformance(
            exp(speed.mean) if speed is not None else None,
            next((ratio for ratio in found if ratio is not None), None),
        )

    def slow_families(self, families: Iterable[str], task: Task, now: float) -> frozenset[str]:
        """Which of the families of a model have proved clearly slower at a task than another of them."""
        known = self._estimates(families, task, now)
        return frozenset(name for name in known if _is_slower(name, known, SPEED_MARGIN))

    def least_measured(self, families: Iterable[str], task: Task, now: float) -> str | None:
        """The family of which the least is known at a task, once another is known: to be tried for a change."""
        seen = {}
        for family in families:
            speeds = self._speeds.get((family, task))
            seen[family] = speeds.count(now) if speeds is not None else 0.0
        if len(seen) < 2 or max(seen.values()) < MIN_GENERATIONS:
            return None
        return min(seen, key=lambda family: (seen[family], family))

    def pays(
        self, family: str, families: Iterable[str], task: Task, now: float, previously: bool | None
    ) -> bool | None:
        """Whether a family's draft pays at a task, which it has not before if `before` is False; None is unknown.

        It does not where a step yields hardly more than one token, or another family of the model is clearly faster.
        """
        better = _RECOVERY_MARGIN if previously is False else 0.0
        verdicts = []
        per_step = self.performance(family, task, now).tokens_per_step
        if per_step is not None:
            verdicts.append(per_step >= MIN_TOKENS_PER_STEP + better)
        known = self._estimates((family, *families), task, now)
        if family in known and len(known) > 1:
            verdicts.append(not _is_slower(family, known, SPEED_MARGIN - better))
        return all(verdicts) if verdicts else None

    def _estimates(self, families: Iterable[str], task: Task, now: float) -> dict[str, _Estimate]:
        found = {family: self._estimate(family, task, now) for family in families}
        return {family: speed for family, speed in found.items() if speed is not None}

    def _estimate(self, family: str, task: Task, now: float) -> _Estimate | None:
        seen = self._speeds.get((family, task))
        return seen.estimate(now) if seen is not None else None


def _is_slower(family: str, known: Mapping[str, _Estimate], margin: float) -> bool:
    """Whether another family is clearly `margin` times as fast."""
    return any(other.is_clearly_above(known[family], log(margin)) for other in known.values())
