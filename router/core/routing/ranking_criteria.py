"""Says which criterion put each engine behind the one before it; see router.core.routing.ranking."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from router.core.routing.ranking import EngineSnapshot, fit_key
from router.core.routing.token_bounds import TokenBounds

Criterion = Literal["up", "context", "seconds", "load", "name"]


def deciding_criteria(
    ranked: Sequence[EngineSnapshot], seconds: Mapping[str, float], bounds: TokenBounds | None = None
) -> list[Criterion | None]:
    """For each of these engines, in the order in which they are ranked; None for the first.

    `seconds`: by name, the whole time of the request at the engine, see `_by_seconds` there.
    """
    fit = fit_key(ranked, bounds)
    found: list[Criterion | None] = [None] if ranked else []
    for better, worse in pairwise(ranked):
        up, other_up = fit(better)[0], fit(worse)[0]
        criterion: Criterion = "name"
        if up != other_up:
            criterion = "up"
        elif fit(better) != fit(worse):
            criterion = "context"
        elif seconds.get(better.name) != seconds.get(worse.name):
            criterion = "seconds"
        elif better.load != worse.load:
            criterion = "load"
        found.append(criterion)
    return found
