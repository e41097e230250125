"""Which of several worker processes may take a slot of an engine that became free.

It is the rule that tenants share slots by (router.core.quota.fair_queue), applied to workers: the one that holds the
fewest slots of the engine is next, and among equals the one whose last grant is the oldest. So workers that wait all
the time get equal shares of an engine, however many requests wait in each of them. Priorities and tenants count within
a worker.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Standing(NamedTuple):
    """A worker's place in the order; the least is next. `last_grant`: the instant of its last slot, by any clock."""

    held: int
    last_grant: int
    worker: int


def is_next(own: Standing, waiting: Iterable[Standing]) -> bool:
    """Whether a worker may take a free slot while these wait for one; `waiting` may include the worker itself."""
    return all(own <= other for other in waiting)
