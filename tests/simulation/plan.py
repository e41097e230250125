"""What a seed decides about its history: which faults occur, and how often clients request, disconnect and purge.

Each history has some kinds of faults and not the others, because many faults at once hide the effects of a single one.
During HARD faults requests may fail; during MILD ones, a client may notice no more than a delay.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

MILD: Final = ("stall", "cut", "lost", "hold", "silence", "slow", "freeze", "offset", "reload", "clock-back", "deaf")
STREAM: Final = "stream"
"""Streams that break off. Where another engine can go on, it is a mild fault."""
SILENT: Final = "silent"
"""Generations that send nothing for longer than `between_tokens`, at engines that compute. It is a mild fault."""
FROZEN: Final = "frozen"
"""An engine that stops answering. Where there is another one, and no other fault, it is a mild fault."""
HARD: Final = ("long-stall", "partition", "long-freeze", "kill", "empty", "failover", "read-only", "engine")
REFUSING: Final = ("full", "refused")
"""Hard faults, too: Redis refuses writes, or an engine the key of the routers."""
POISON: Final = "poison"
"""A request that ends each engine that gets it. For other requests it is a mild fault while an engine is left."""


MAX_QUESTIONS: Final = 3
POISONS: Final = (MAX_QUESTIONS + 1, MAX_QUESTIONS + 2)
"""The questions that end engines. As of all questions, the odd one has a limit of tokens."""


class ScenarioPlan(msgspec.Struct, frozen=True):
    """`seconds` of activity; the `kinds` of faults, and the total number of `faults`. `episodes` are groups of equal
    requests.

    The booleans: whether there are `purges`; whether engines have `pauses`; whether a client `leaves` early; whether
    some read slowly; whether the routers' loops have `ticks`; whether the engines tell `token_ids`; whether the last
    engine is a `standby` of another revision. `slots`: those of each engine; 0 is any number. `thoughts`: whether
    models reason.
    """

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
    token_ids: bool
    standby: bool
    slots: int = 0
    thoughts: bool = False


def draw_plan(random: Random, chosen: Sequence[str] = (), *, streams: Random) -> ScenarioPlan:
    """Draw a plan. `chosen`: the kinds of its faults, instead of random ones. `streams`: for what streams meet."""
    kinds: list[str] = []
    if random.random() < 0.85:
        kinds += random.sample(MILD, random.randint(1, 3))
    if random.random() < 0.4:
        kinds += random.sample(HARD, random.randint(1, 2))
    if streams.random() < 0.2:
        kinds.append(STREAM)
    kinds = [*chosen] or kinds
    seconds, routers, engines = random.choice((4.0, 6.0, 9.0)), random.choice((2, 2, 3)), random.choice((1, 1, 2))
    if STREAM in kinds:
        engines = streams.choice((1, 2, 2, 2, 3))
    token_ids, standby = streams.random() < 0.7, engines > 1 and streams.random() < 0.3
    # Not with streams that hang, which an engine that computes for others may keep for longer than a history lasts.
    if not chosen and not {STREAM, "engine"} & {*kinds} and streams.random() < 0.15:
        kinds.append(streams.choice((SILENT, FROZEN)))
    if not chosen and streams.random() < 0.1:
        kinds.append(streams.choice(REFUSING))
    if not chosen and not {STREAM, SILENT, FROZEN, "engine", *REFUSING} & {*kinds} and streams.random() < 0.15:
        kinds.append(POISON)
    if POISON in kinds:
        engines = streams.choice((3, 4, 5, 6))
    return ScenarioPlan(
        seconds=seconds,
        routers=routers,
        engines=engines,
        tenants=random.choice((1, 1, 2)),
        questions=random.choice((1, 1, 2, MAX_QUESTIONS)),
        episodes=random.randint(2, 6),
        kinds=tuple(kinds),
        faults=random.randint(1, 6) if kinds else 0,
        purges=random.random() < 0.6,
        pauses=random.random() < 0.3,
        leaves=random.random() < 0.4,
        slow_readers=random.random() < 0.2,
        ticks=random.random() < 0.3,
        token_ids=token_ids,
        standby=standby,
        thoughts=streams.random() < 0.4,
    )
