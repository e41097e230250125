"""What a seed makes happen: which faults there are in its history, and how often people ask, leave and purge.

Each history has some kinds of faults and not the others, since many faults at once hide what one of them does. `hard`
faults excuse that requests fail; of the others, no client may notice more than a delay.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

MILD: Final = ("stall", "cut", "lost", "hold", "silence", "slow", "freeze", "offset", "reload", "clock-back", "deaf")
HARD: Final = ("long-stall", "partition", "long-freeze", "kill", "empty", "failover", "read-only", "engine")


class ScenarioPlan(msgspec.Struct, frozen=True):
    """`seconds` of activity; `kinds` of faults, and how many `faults` of them in all; see the names of the others."""

    seconds: float
    routers: int
    engines: int
    tenants: int
    questions: int
    episodes: int
    kinds: tuple[str, ...]
    faults: int
    purges: bool
    pauses: bool
    leaves: bool
    slow_readers: bool
    ticks: bool


def draw_plan(random: Random, chosen: Sequence[str] = ()) -> ScenarioPlan:
    """Draws a plan; `chosen`: the kinds of its faults, where they are not to be drawn."""
    kinds: list[str] = []
    if random.random() < 0.85:
        kinds += random.sample(MILD, random.randint(1, 3))
    if random.random() < 0.4:
        kinds += random.sample(HARD, random.randint(1, 2))
    kinds = [*chosen] or kinds
    return ScenarioPlan(
        seconds=random.choice((4.0, 6.0, 9.0)),
        routers=random.choice((2, 2, 3)),
        engines=random.choice((1, 1, 2)),
        tenants=random.choice((1, 1, 2)),
        questions=random.choice((1, 1, 2, 3)),
        episodes=random.randint(2, 6),
        kinds=tuple(kinds),
        faults=random.randint(1, 6) if kinds else 0,
        purges=random.random() < 0.6,
        pauses=random.random() < 0.3,
        leaves=random.random() < 0.4,
        slow_readers=random.random() < 0.2,
        ticks=random.random() < 0.3,
    )
