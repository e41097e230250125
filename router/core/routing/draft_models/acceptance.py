"""Learns the tokens per step that each draft yields, by bin of the classifier's score.

Theory. The tokens per step of a request depend on the prompt and the draft, not on the machine or its load. A family's
value in a bin is estimated as a posterior mean of a normal distribution: its observations there, the neighbouring bins
as at most `_MAX_LENT` observations, and a weak prior. The noise of an observation is in proportion to the mean. The
proportion is estimated too, because it differs between drafts and prompts.

Evidence fades with new evidence (discounted Thompson sampling: Raj and Kalyani 2017, arXiv:1707.09727):

- Each observation discounts what is known in its bin, of all families that could have served the request. So a family
  that is no longer used becomes uncertain, and is tried again.
- An observation that is far from the mean halves what is known of its family in all bins: the draft may have been
  replaced. A few such observations suffice to forget the old draft.
- Time counts little (`_HALF_LIFE`), so that an engine with a request a minute is known too.
"""

from collections.abc import Iterable
from math import sqrt
from typing import Final, NamedTuple

from router.core.routing.draft_models.score_bins import BINS

# Observations in a bin after which an older one has 1/e of its weight.
_MEMORY: Final = 60.0
_HALF_LIFE: Final = 6 * 3600.0  # seconds
# The steps at which the noise within a request is as large as that between requests; a short request says little.
_STEPS_OF_HALF_WEIGHT: Final = 16.0

# More accepted draft tokens in a step are no measurement: drafts propose up to a few dozen.
_MAX_ACCEPTED_PER_STEP: Final = 128

_LENT_SHARES: Final = tuple(0.4**distance for distance in range(BINS))  # of its evidence that a bin lends another
_MAX_LENT: Final = 2.0  # observations

_PRIOR_MEAN: Final = 2.0  # tokens per step
_PRIOR_LOSS: Final = 0.25  # share that the prior is lower for each step of distance from the configured task
_PRIOR_WEIGHT: Final = 0.5  # observations

# The standard deviation of an observation, relative to the mean.
_INITIAL_NOISE: Final = 0.25
_MIN_NOISE: Final = 0.1
_MAX_NOISE: Final = 0.6
_NOISE_MEMORY: Final = 50.0  # observations

_SURPRISE: Final = 2.0  # standard deviations
_KNOWN_WEIGHT: Final = 1.0  # observations from which on an estimate is known


class TokensPerStep(NamedTuple):
    """An estimate of the tokens per step, and its standard error."""

    mean: float
    standard_error: float


class _BinEvidence:
    """The observations of one family in one bin."""

    __slots__ = ("mean", "updated_at", "weight")

    def __init__(self) -> None:
        self.mean = self.weight = self.updated_at = 0.0

    def weight_at(self, now: float) -> float:
        return self.weight * float(0.5 ** (max(0.0, now - self.updated_at) / _HALF_LIFE))

    def add(self, value: float, weight: float, now: float) -> None:
        total = self.weight_at(now) + weight
        self.mean += (value - self.mean) * weight / total
        self.weight, self.updated_at = total, now


class _DraftEvidence:
    """The observations of one family."""

    __slots__ = ("_noise_variance", "bins")

    def __init__(self) -> None:
        self.bins = [_BinEvidence() for _ in range(BINS)]
        self._noise_variance = _INITIAL_NOISE**2

    @property
    def noise(self) -> float:
        return min(_MAX_NOISE, max(_MIN_NOISE, sqrt(self._noise_variance)))

    def observe(self, bin_: int, value: float, weight: float, now: float) -> None:
        own = self.bins[bin_]
        known = own.weight_at(now)
        if known >= 1.0:
            # The squared deviation in units of its own expected variance, which is smaller for a long request.
            deviation = ((value - own.mean) / own.mean) ** 2 / (1 / weight + 1 / known)
            if deviation > (_SURPRISE * self.noise) ** 2:
                for evidence in self.bins:
                    evidence.weight /= 2
            self._noise_variance += (min(deviation, _MAX_NOISE**2) - self._noise_variance) / _NOISE_MEMORY
        own.add(value, weight, now)

    def lent(self, bin_: int, now: float) -> tuple[float, float]:
        """The mean and the weight that the other bins lend to this one."""
        total = mean_sum = 0.0
        for other, evidence in enumerate(self.bins):
            if other != bin_ and evidence.weight > 0:
                weight = _LENT_SHARES[abs(other - bin_)] * evidence.weight_at(now)
                total += weight
                mean_sum += weight * evidence.mean
        return (mean_sum / total, min(total, _MAX_LENT)) if total > 0 else (0.0, 0.0)


class Acceptance:
    """The tokens per step of all families. Its size is bounded by the number of families."""

    def __init__(self) -> None:
        self._drafts: dict[str, _DraftEvidence] = {}

    def observe(self, family: str, rivals: Iterable[str], bin_: int, steps: float, accepted: float, now: float) -> None:
        """A request, or several, of this bin took `steps` in which `accepted` draft tokens were accepted.

        `rivals`: the families that could have served it.
        """
        if steps <= 0 or accepted > _MAX_ACCEPTED_PER_STEP * steps:
            return
        for rival in rivals:
            if (known := self._drafts.get(rival)) is not None:
                known.bins[bin_].weight *= 1 - 1 / _MEMORY
        draft = self._drafts.setdefault(family, _DraftEvidence())
        draft.observe(bin_, (steps + accepted) / steps, steps / (steps + _STEPS_OF_HALF_WEIGHT), now)

    def estimate(self, family: str, bin_: int, now: float) -> TokensPerStep | None:
        """What is known without the prior; None if that is too little."""
        draft = self._drafts.get(family)
        if draft is None:
            return None
        own, (lent_mean, lent_weight) = draft.bins[bin_], draft.lent(bin_, now)
        own_weight = own.weight_at(now)
        total = own_weight + lent_weight
        if total < _KNOWN_WEIGHT:
            return None
        mean = (own_weight * own.mean + lent_weight * lent_mean) / total
        return TokensPerStep(mean, mean * draft.noise / sqrt(total))

    def mean_over(self, family: str, bins: Iterable[int], now: float) -> TokensPerStep | None:
        """The mean of several bins, by their evidence."""
        draft = self._drafts.get(family)
        if draft is None:
            return None
        evidence = [draft.bins[bin_] for bin_ in bins]
        total = sum(one.weight_at(now) for one in evidence)
        if total < _KNOWN_WEIGHT:
            return None
        mean = sum(one.weight_at(now) * one.mean for one in evidence) / total
        return TokensPerStep(mean, mean * draft.noise / sqrt(total))

    def value(self, family: str, bin_: int, distance: int, now: float, deviations: float) -> float:
        """The posterior mean, plus `deviations` posterior standard deviations: a sample, if these are normal.

        `distance`: that of the engine's configured task from the bin's, 0 to 2.
        """
        weight, total = _PRIOR_WEIGHT, _PRIOR_WEIGHT * _PRIOR_MEAN * (1 - _PRIOR_LOSS * distance)
        noise = _INITIAL_NOISE
        if (draft := self._drafts.get(family)) is not None:
            own, (lent_mean, lent_weight) = draft.bins[bin_], draft.lent(bin_, now)
            own_weight, noise = own.weight_at(now), draft.noise
            weight += own_weight + lent_weight
            total += own_weight * own.mean + lent_weight * lent_mean
        mean = total / weight
        return mean * (1 + deviations * noise / sqrt(weight))
