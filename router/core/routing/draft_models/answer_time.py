"""Estimates how long the answer to a prompt takes after its first token, at engines with different drafts.

    answer_seconds = expected tokens / (steps_per_second * tokens_per_step)

- The expected tokens are the mean of earlier answers of the model at the task, and at most the request's `max_tokens`.
- `tokens_per_step`: what the draft yields for such prompts (acceptance.py); 1 without a draft.
- `steps_per_second`: at the load that the engines have (step_rates.py). Measurements vary, so engines count as equally
  fast unless one is clearly slower. An engine that was not measured counts as fast as the fastest: so it is tried.

With the time to the first token (prefill.py) this is the whole time of a request, by which engines with different
drafts are compared: a better draft is worth a prefix that is computed again, or a queue, if it gains more than they
cost.

The configured task is what an operator expects of an engine before anything is measured: an engine for the other task
counts as half as fast. Once the engines are measured, it only decides between equals.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

EQUAL_SHARE: Final = 0.97
"""Share of the best draft's tokens per step from which on a draft is as good, so that the rest of the cost decides."""

DEFAULT_STEPS_PER_SECOND: Final = 40.0
"""Until it is known: about that of a model with 8 billion parameters on one H100 with some load."""

MIN_TOKENS_PER_STEP: Final = 1.05
"""Tokens per step below which a draft cannot pay off: a step with a draft takes at least so much longer."""

# By how much an engine counts as slower for each step of distance from the request's task.
_EXPECTED_LOSS: Final = 0.25
_TIE_BREAK: Final = 0.03


class FamilyLoad(msgspec.Struct, frozen=True, gc=False):
    """The engines of one family that could serve a request.

    - `distance`: of their configured task from the request's, 0 to 2.
    - `has_draft`: None is unknown.
    - `load`: the mean number of their requests, with the new one.
    - `backlog`: the waiting requests for each running one, where all of them have a backlog; else 0.
    """

    family: str
    distance: int
    has_draft: bool | None
    load: float
    backlog: float = 0.0


class StepRate(msgspec.Struct, frozen=True, gc=False):
    """What a family is expected to reach at its load. `is_measured`: it was measured at some load."""

    steps_per_second: float
    is_measured: bool


def answer_seconds(
    families: Sequence[FamilyLoad],
    tokens: float,
    tokens_per_step: Mapping[str, float],
    step_rates: Mapping[str, StepRate],
) -> dict[str, float]:
    """By family, the seconds of an answer of so many tokens."""
    best = EQUAL_SHARE * max((tokens_per_step[each.family] for each in families), default=1.0)
    are_measured = all(step_rates[each.family].is_measured for each in families)
    have_drafts = any(each.has_draft for each in families)
    found = {}
    for each in families:
        rate, per_step = step_rates[each.family].steps_per_second, tokens_per_step[each.family]
        seconds = tokens / (rate * min(per_step, best))
        # What a draft is expected to yield before it is measured has the task in it already.
        loss = _TIE_BREAK if are_measured or (have_drafts and each.has_draft is not None) else _EXPECTED_LOSS
        distance = 2 if each.backlog else each.distance
        # One of the running requests ends every `seconds / running`, and lets a waiting one begin.
        found[each.family] = seconds / (1 - loss * distance) + each.backlog * seconds
    return found
