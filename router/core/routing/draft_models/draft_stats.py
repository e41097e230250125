"""Measures the draft models: what each is worth for a prompt, and whether it pays off.

Theory. Three things are measured, and kept apart:

- The tokens per step, which say how good a draft is for a prompt, whatever the machine and its load (acceptance.py).
  vLLM reports them with each response if it is started for it. Else they come from the engine's counters: those between
  two probes count for a bin if nearly all generations that ended in between were of that bin.
- The steps per second, by load (step_rates.py). With the tokens per step, they give the speed in each bin, and say
  whether a draft is faster than the same engine without it.
- The tokens per second by task (speeds.py), for engines whose steps are unknown.

Replicas have the same draft; together they are one *family* here. `now` is in seconds of one monotonic clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from typing import Final

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.draft_models.acceptance import Acceptance, TokensPerStep
from router.core.routing.draft_models.answer_lengths import AnswerLengths
from router.core.routing.draft_models.answer_time import (
    DEFAULT_STEPS_PER_SECOND,
    MIN_TOKENS_PER_STEP,
    FamilyLoad,
    StepRate,
    answer_seconds,
)
from router.core.routing.draft_models.counted_steps import CountedSteps, SpeculationCounters
from router.core.routing.draft_models.decaying_speeds import DecayingSpeeds
from router.core.routing.draft_models.draft_performance import DraftPerformance, MeasuredGeneration
from router.core.routing.draft_models.score_bins import BINS, bins_of, task_of
from router.core.routing.draft_models.speeds import MAX_GAP, MIN_GENERATIONS, SpeedEstimate
from router.core.routing.draft_models.step_rates import CLOSEST_LEVELS, MAX_LEVEL, StepRates, load_level
from router.core.types import Task

_SPEED_MARGIN: Final = 1.1  # ratio of speeds from which on an engine may be clearly slower than another
_MIN_ANSWER_TOKENS: Final = 8  # a shorter response says little about the speed
_DOMINANT_SHARE: Final = 0.9  # the share of a bin's tokens from which on a probe's counters are attributed to it
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


class DraftStats:
    """The measurements of one router process. Its size is bounded by the number of families, engines and bins.

    `failing_levels`: by family and task, the load levels at which its draft does not pay, as last known.
    """

    def __init__(self) -> None:
        self.failing_levels: dict[tuple[str, Task], set[int]] = {}
        self._acceptance = Acceptance()
        self._step_rates = StepRates()
        self._speeds: dict[tuple[str, Task], DecayingSpeeds] = {}  # by family
        self._speeds_by_level: dict[tuple[str, Task, int], DecayingSpeeds] = {}
        self._counted_steps = CountedSteps()
        self._answer_lengths = AnswerLengths()
        # Since the last probe, by engine and bin; None for an engine that reports the steps of each request itself.
        self._tokens_since_probe: dict[str, dict[int, int] | None] = {}

    def record_generation(self, done: MeasuredGeneration, now: float) -> None:
        family, bin_, tokens, seconds, speculation = done.family, done.bin_, done.tokens, done.seconds, done.speculation
        task, choices = task_of(bin_), done.choices
        if tokens:
            self._answer_lengths.add(done.model, task, tokens // choices)
        if speculation is not None:
            self._tokens_since_probe[done.engine] = None
            steps, accepted = speculation.steps, speculation.accepted
            self._acceptance.observe(family, done.rivals, bin_, steps, accepted, now)
        elif (tokens_by_bin := self._tokens_since_probe.setdefault(done.engine, {})) is not None:
            tokens_by_bin[bin_] = tokens_by_bin.get(bin_, 0) + tokens
        # The time from the first token on would say more about the draft. But tokens that arrive late arrive together,
        # and then that time is close to zero.
        if tokens >= _MIN_ANSWER_TOKENS and seconds > 0 and choices == 1:
            level, speed = done.level, tokens / seconds
            if (speeds := self._speeds.get((family, task))) is None:
                speeds = self._speeds[family, task] = DecayingSpeeds()
            speeds.add(speed, now)
            if (speeds := self._speeds_by_level.get((family, task, level))) is None:
                speeds = self._speeds_by_level[family, task, level] = DecayingSpeeds(max_gap=MAX_GAP)
            speeds.add(speed, now)
            if (taken := done.steps) is not None:
                self._step_rates.add(family, level, taken / seconds, now)

    def record_counters(
        self, engine: str, family: str, rivals: frozenset[str], counters: SpeculationCounters, now: float
    ) -> None:
        tokens_by_bin = self._tokens_since_probe.pop(engine, None)
        added = self._counted_steps.advance(engine, family, counters, now)
        if added is None or not tokens_by_bin:
            return
        total = sum(tokens_by_bin.values())
        for bin_, tokens in tokens_by_bin.items():
            # Half of the engine's tokens must be this router's own: the bin of other clients' requests is unknown.
            if tokens >= _DOMINANT_SHARE * total and 2 * total >= added.steps + added.accepted:
                self._acceptance.observe(family, rivals, bin_, added.steps, added.accepted, now)

    def performance(self, family: str, task: Task, now: float) -> DraftPerformance:
        """The tokens per step are those of all the engine's work if they are unknown for this task."""
        speeds = self._speeds.get((family, task))
        speed = speeds.estimate(now) if speeds is not None else None
        per_step = self._tokens_per_step(family, task, now)
        return DraftPerformance(
            exp(speed.mean) if speed is not None else None,  # the geometric mean
            per_step.mean if per_step is not None else None,
        )

    def tokens_per_step_by_bin(self, family: str, now: float) -> dict[int, float]:
        """Those of the bins in which enough is known of the family's draft; see score_bins."""
        estimates = {bin_: self._acceptance.estimate(family, bin_, now) for bin_ in range(BINS)}
        return {bin_: estimate.mean for bin_, estimate in estimates.items() if estimate is not None}

    # -- for a request ------------------------------------------------------------------------------------------------

    def answer_seconds(
        self, families: Sequence[FamilyLoad], bin_: int, tokens: float, now: float, deviations: Mapping[str, float]
    ) -> dict[str, float]:
        """By family, the expected seconds of an answer of so many tokens; see answer_time.

        `deviations`: by family, a random number of the standard normal distribution (Thompson sampling): the less is
        known of a draft, the more often it is tried. Without them, nothing is tried.
        """
        per_step = self._expected_tokens_per_step(families, bin_, now, deviations)
        return answer_seconds(families, tokens, per_step, self._expected_step_rates(families, bin_, per_step, now))

    def _expected_tokens_per_step(
        self, families: Sequence[FamilyLoad], bin_: int, now: float, deviations: Mapping[str, float]
    ) -> dict[str, float]:
        drafting = {each.family: each.distance for each in families if each.has_draft}
        without = {each.family: 1.0 for each in families if not each.has_draft}
        if deviations:
            # No draft yields less than the token of the target model.
            return without | {
                family: max(1.0, self._acceptance.value(family, bin_, distance, now, deviations[family]))
                for family, distance in drafting.items()
            }
        estimates = {family: self._acceptance.estimate(family, bin_, now) for family in drafting}
        known = {family: estimate.mean for family, estimate in estimates.items() if estimate is not None}
        # An unknown draft counts as the worst one: it takes no place of a known one but by its task.
        least = min(known.values(), default=0.0)
        return without | {
            family: known.get(family) or least or self._acceptance.value(family, bin_, distance, now, 0.0)
            for family, distance in drafting.items()
        }

    def _expected_step_rates(
        self, families: Sequence[FamilyLoad], bin_: int, tokens_per_step: Mapping[str, float], now: float
    ) -> dict[str, StepRate]:
        if any(each.has_draft for each in families):
            levels = {each.family: load_level(each.load) for each in families}
        else:  # which of them has more load is a matter of the cost
            levels = dict.fromkeys(tokens_per_step, load_level(sum(each.load for each in families) / len(families)))
        by_level = {
            level: self._step_rates_at(level, families, bin_, tokens_per_step, now) for level in range(1, MAX_LEVEL + 1)
        }
        task = task_of(bin_)
        return {
            each.family: StepRate(
                _expected_step_rate(each, levels[each.family], families, by_level),
                self._is_measured(each.family, task, now),
            )
            for each in families
        }

    def _step_rates_at(
        self, level: int, families: Sequence[FamilyLoad], bin_: int, tokens_per_step: Mapping[str, float], now: float
    ) -> dict[str, SpeedEstimate]:
        """By family, those that are known at a load."""
        rates = {
            each.family: self._step_rate(each.family, bin_, level, tokens_per_step[each.family], now)
            for each in families
        }
        return {family: rate for family, rate in rates.items() if rate is not None}

    def _is_measured(self, family: str, task: Task, now: float) -> bool:
        speeds = self._speeds.get((family, task))
        return self._step_rates.estimate(family, now) is not None or (
            speeds is not None and speeds.estimate(now) is not None
        )

    def _step_rate(
        self, family: str, bin_: int, level: int, tokens_per_step: float, now: float
    ) -> SpeedEstimate | None:
        """In steps per second. Those of all requests say more than the speed at a task."""
        rate = self._step_rates.recent_estimate(family, level, now)
        if rate is not None:
            return rate
        task = task_of(bin_)
        speeds = self._speeds_by_level.get((family, task, level))
        speed = speeds.estimate(now) if speeds is not None else None
        if speed is None:
            return None
        measured = self._acceptance.mean_over(family, bins_of(task), now)
        return speed.times(1 / (measured.mean if measured is not None else tokens_per_step), 0.0)

    def expected_tokens(self, model: str, task: Task, max_tokens: int | None) -> float:
        """The expected length of an answer."""
        return self._answer_lengths.expected(model, task, max_tokens)

    def least_measured(self, families: Iterable[str], task: Task, now: float) -> str | None:
        """The family with the fewest measurements at a task, for exploration; None until another family is known.

        A family whose tokens per step at the task and steps per second are known needs none: the draft is explored by
        chance.
        """
        weights = {}
        for family in families:
            speeds = self._speeds.get((family, task))
            weights[family] = speeds.count(now) if speeds is not None else 0.0
        if len(weights) < 2 or max(weights.values()) < MIN_GENERATIONS:
            return None
        unknown = [family for family in weights if not self._has_known_steps(family, task, now)]
        return min(unknown, key=lambda family: (weights[family], family), default=None)

    def _has_known_steps(self, family: str, task: Task, now: float) -> bool:
        per_step = self._acceptance.mean_over(family, bins_of(task), now)
        return per_step is not None and self._step_rates.estimate(family, now) is not None

    # -- whether drafts pay -------------------------------------------------------------------------------------------

    def pays(
        self, family: str, baseline: str | None, task: Task, level: int, now: float, previously: bool | None
    ) -> bool | None:
        """Whether a family's draft makes it faster at a task and load; None is unknown.

        `baseline`: the family that is the same engine without its draft. `previously`: the last known result.
        """
        per_step = self._tokens_per_step(family, task, now)
        return self._pays(family, baseline, per_step, level, now, _RECOVERY_MARGIN if previously is False else 0.0)

    def _tokens_per_step(self, family: str, task: Task, now: float) -> TokensPerStep | None:
        per_step = self._acceptance.mean_over(family, bins_of(task), now)
        counted = self._counted_steps.tokens_per_step(family, now)
        return per_step or (TokensPerStep(counted, 0.0) if counted is not None else None)

    def _pays(
        self, family: str, baseline: str | None, per_step: TokensPerStep | None, level: int, now: float, margin: float
    ) -> bool | None:
        if per_step is None:
            return None
        if per_step.mean < MIN_TOKENS_PER_STEP + margin:
            return False
        if baseline is None:
            return None
        return self._step_rates.is_faster(family, baseline, per_step, level, now)


def _expected_step_rate(
    family: FamilyLoad, load: int, families: Sequence[FamilyLoad], by_level: Mapping[int, Mapping[str, SpeedEstimate]]
) -> float:
    """The rate of the fastest at the load, times how fast the family was beside the fastest where it was measured.

    `by_level`: by load and family, the rates that are known.
    """
    closest = CLOSEST_LEVELS[load]
    near = next((by_level[level] for level in closest if by_level[level]), None)
    if near is None:
        return DEFAULT_STEPS_PER_SECOND
    drafting = {each.family: bool(each.has_draft) for each in families}
    fastest = _fastest(near)
    expected = exp(near[fastest].mean)
    for level in closest:
        rates = by_level[level]
        if (own := rates.get(family.family)) is None:
            continue
        best = _fastest(rates)
        if level > load and drafting[family.family] and not drafting[best]:
            continue  # what a draft costs grows with the load; see step_rates
        if rates[best].is_clearly_above(own, _SPEED_MARGIN):
            expected *= exp(own.mean - rates[best].mean)
        # With more load, no engine is faster.
        return min(expected, exp(rates[best].mean), exp(own.mean)) if level < load else expected
    # A step with a draft takes longer than one without.
    longer: float = MIN_TOKENS_PER_STEP ** (drafting[fastest] - drafting[family.family])
    return expected * longer


def _fastest(rates: Mapping[str, SpeedEstimate]) -> str:
    return max(rates, key=lambda family: rates[family].mean)
