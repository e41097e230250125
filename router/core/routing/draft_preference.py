"""Orders the drafts of a model for a request, by the tokens per step that are expected of them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

EQUAL_SHARE: Final = 0.97
"""Share of the best draft's tokens per step from which on a draft is as good, so that affinity and load decide."""

STICKY_EQUAL_SHARE: Final = 0.8
"""The same for a session: moving it to another engine costs the prefix cache of its conversation."""


class DraftRank(NamedTuple):
    """The place of an engine with a draft.

    - `distance`: the distance from the task that the engine ranks with.
    - `order`: its place among the engines with drafts; equal for drafts that are equally good.
    """

    distance: int
    order: int


def rank_drafts(
    distances: Mapping[str, int], values: Mapping[str, float], equal_share: float = EQUAL_SHARE
) -> dict[str, DraftRank]:
    """The ranks of families; `distances` are those of their configured tasks, `values` their tokens per step.

    The families exchange their distances, so that the best one gets the smallest. So the measurements decide between
    drafts, while the configured tasks still decide between an engine with a draft and one without.
    """
    if not values:
        return {}
    threshold = equal_share * max(values.values())

    # Among equally good ones, the configured task decides.
    def place(family: str) -> tuple[float, int]:
        return -min(values[family], threshold), distances[family]

    free = sorted(distances[family] for family in values)
    ranks: dict[str, DraftRank] = {}
    previous: str | None = None
    for number, family in enumerate(sorted(values, key=place)):
        equal = previous is not None and place(family) == place(previous)
        ranks[family] = ranks[previous] if equal and previous is not None else DraftRank(free[number], number)
        previous = family
    return ranks
