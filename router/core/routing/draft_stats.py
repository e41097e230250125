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

from router.core.endpoints.request import Request
from router.core.types import Endpoint, Task

HALF_LIFE: Final = 600.0
"""Seconds after which half of what was seen has faded."""

ENOUGH: Final = 12.0
"""Generations, faded ones counted by what is left of them, from which on a speed is known."""

ENOUGH_STEPS: Final = 100.0
"""Steps of an engine from which on its accepted tokens are known."""

MARGIN: Final = 1.2
"""How many times as fast another engine must be to be clearly faster."""

WORTH: Final = 1.15
"""Tokens a step under which a draft does not pay: it costs more than a seventh of a step itself."""

_ERRORS: Final = 2.0  # standard errors by which speeds must differ, lest it be chance
_SHORTEST: Final = 8  # tokens; a shorter answer says little of the speed
_NEARLY_ALL: Final = 0.9  # the share of one task, from which on a probe's counts are taken to be of it
_AGAIN: Final = 0.1  # by how much things must be better than where a draft stopped paying, for it to pay again
_SAMPLES: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES)
_NOTHING: Final = 1e-5  # vLLM takes a temperature or min_p below it for 0


def unserved(request: Request) -> tuple[str, ...]:
    """The fields of a request for which vLLM refuses it where it speculates.

    Source: SamplingParams._validate_spec_decode of vLLM 0.32: "The min_p and logit_bias sampling parameters are not yet
    supported with speculative decoding". Greedy sampling has no use for min_p, and passes over it.
    """
    if request.endpoint not in _SAMPLES:
        return ()  # the others pass over these fields
    fields = request.fields
    min_p, logit_bias = fields.get("min_p"), fields.get("logit_bias")
    if not min_p and not logit_bias:
        return ()
    temperature = fields.get("temperature")
    greedy = isinstance(temperature, int | float) and temperature < _NOTHING
    refused = []
    if isinstance(min_p, int | float) and min_p > _NOTHING and not greedy:
        refused.append("min_p")
    if logit_bias:
        refused.append("logit_bias")
    return tuple(refused)


class Counts(msgspec.Struct, frozen=True):
    """An engine's counters, since its start."""

    steps: float
    accepted: float


class Learned(msgspec.Struct, frozen=True):
    """What is known of a family at a task; None is unknown.

    - `tokens_per_second`: of one request, from when it was sent to its last token.
    - `tokens_per_step`: one of the target's own, and the draft's that were accepted.
    """

    tokens_per_second: float | None = None
    tokens_per_step: float | None = None


def _left(seconds: float) -> float:
    """The share that is left after so many seconds."""
    return float(0.5 ** (max(0.0, seconds) / HALF_LIFE))


class _Fading:
    """A ratio of two sums, both of which fade, and how much there is of it."""

    __slots__ = ("_above", "_at", "_below", "_weight")

    def __init__(self) -> None:
        self._above = self._below = self._weight = 0.0
        self._at = 0.0

    def add(self, above: float, below: float, weight: float, now: float) -> None:
        left = _left(now - self._at)
        self._above = self._above * left + above
        self._below = self._below * left + below
        self._weight = self._weight * left + weight
        self._at = now

    def weight(self, now: float) -> float:
        return self._weight * _left(now - self._at)

    def ratio(self, now: float, enough: float) -> float | None:
        return self._above / self._below if self._below > 0 and self.weight(now) >= enough else None


class _Estimate(NamedTuple):
    """The mean of what was seen, and the standard error of that."""

    mean: float
    error: float

    def is_clearly_above(self, other: "_Estimate", by: float) -> bool:
        """Whether it is at least `by` more, and more than chance would explain."""
        difference = self.mean - other.mean
        return difference >= by and difference >= _ERRORS * hypot(self.error, other.error)


class _Speeds:
    """The speeds of single generations, as logarithms: one that stalls must not outweigh all the others."""

    __slots__ = ("_at", "_count", "_squares", "_sum")

    def __init__(self) -> None:
        self._count = self._sum = self._squares = 0.0
        self._at = 0.0

    def add(self, tokens_per_second: float, now: float) -> None:
        value, left = log(tokens_per_second), _left(now - self._at)
        self._count = self._count * left + 1.0
        self._sum = self._sum * left + value
        self._squares = self._squares * left + value * value
        self._at = now

    def count(self, now: float) -> float:
        """How many there are, faded ones by what is left of them."""
        return self._count * _left(now - self._at)

    def estimate(self, now: float) -> _Estimate | None:
        count = self.count(now)
        if count < ENOUGH:
            return None
        mean = self._sum / self._count
        return _Estimate(mean, sqrt(max(0.0, self._squares / self._count - mean * mean) / count))


class Experience:
    """What one router has learned. Its size is bounded by the families and tasks that there are."""

    def __init__(self) -> None:
        self._speeds: dict[tuple[str, Task], _Speeds] = {}
        self._steps: dict[tuple[str, Task | None], _Fading] = {}
        self._counts: dict[str, Counts] = {}
        self._ended: dict[str, dict[Task, int]] = {}

    def generated(self, engine: str, family: str, task: Task, tokens: int, seconds: float, now: float) -> None:
        """A generation of `tokens` ended; `seconds` is all that it took at the engine.

        The time from the first token on would tell more of the draft, but tokens that come late come together, and then
        it is next to nothing.
        """
        ended = self._ended.setdefault(engine, {})
        ended[task] = ended.get(task, 0) + tokens
        if tokens >= _SHORTEST and seconds > 0:
            speeds = self._speeds.get((family, task))
            if speeds is None:
                speeds = self._speeds[family, task] = _Speeds()
            speeds.add(tokens / seconds, now)

    def counted(self, engine: str, family: str, counts: Counts, now: float) -> None:
        """An engine's counters were read. Whoever has less than before has been started anew."""
        before = self._counts.get(engine)
        self._counts[engine] = counts
        ended = self._ended.pop(engine, {})
        if before is None:
            return
        if counts.steps < before.steps or counts.accepted < before.accepted:
            before = Counts(0, 0)
        steps, accepted = counts.steps - before.steps, counts.accepted - before.accepted
        if steps <= 0:
            return
        self._steps.setdefault((family, None), _Fading()).add(steps + accepted, steps, steps, now)
        total = sum(ended.values())
        for task, tokens in ended.items():
            # What others had the engine do is of nobody knows what kind.
            if tokens >= _NEARLY_ALL * total and 2 * total >= steps + accepted:
                self._steps.setdefault((family, task), _Fading()).add(steps + accepted, steps, steps, now)

    def learned(self, family: str, task: Task, now: float) -> Learned:
        """What is known; the tokens a step are those of all tasks where they are not known of this one."""
        speed = self._speed(family, task, now)
        found = [
            self._steps[key].ratio(now, ENOUGH_STEPS) for key in ((family, task), (family, None)) if key in self._steps
        ]
        return Learned(
            exp(speed.mean) if speed is not None else None,
            next((ratio for ratio in found if ratio is not None), None),
        )

    def slow(self, families: Iterable[str], task: Task, now: float) -> frozenset[str]:
        """Which of the families of a model have proved clearly slower at a task than another of them."""
        known = self._known(families, task, now)
        return frozenset(name for name in known if _is_beaten(name, known, MARGIN))

    def least_known(self, families: Iterable[str], task: Task, now: float) -> str | None:
        """The family of which the least is known at a task, once another is known: to be tried for a change."""
        seen = {}
        for family in families:
            speeds = self._speeds.get((family, task))
            seen[family] = speeds.count(now) if speeds is not None else 0.0
        if len(seen) < 2 or max(seen.values()) < ENOUGH:
            return None
        return min(seen, key=lambda family: (seen[family], family))

    def pays(self, family: str, families: Iterable[str], task: Task, now: float, before: bool | None) -> bool | None:
        """Whether a family's draft pays at a task, which it has not before if `before` is False; None is unknown.

        It does not where a step yields hardly more than one token, or another family of the model is clearly faster.
        """
        better = _AGAIN if before is False else 0.0
        verdicts = []
        per_step = self.learned(family, task, now).tokens_per_step
        if per_step is not None:
            verdicts.append(per_step >= WORTH + better)
        known = self._known((family, *families), task, now)
        if family in known and len(known) > 1:
            verdicts.append(not _is_beaten(family, known, MARGIN - better))
        return all(verdicts) if verdicts else None

    def _known(self, families: Iterable[str], task: Task, now: float) -> dict[str, _Estimate]:
        found = {family: self._speed(family, task, now) for family in families}
        return {family: speed for family, speed in found.items() if speed is not None}

    def _speed(self, family: str, task: Task, now: float) -> _Estimate | None:
        seen = self._speeds.get((family, task))
        return seen.estimate(now) if seen is not None else None


def _is_beaten(family: str, known: Mapping[str, _Estimate], margin: float) -> bool:
    """Whether another family is clearly `margin` times as fast."""
    return any(other.is_clearly_above(known[family], log(margin)) for other in known.values())
