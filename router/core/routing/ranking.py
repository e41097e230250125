"""Ranks the engines of a model for a request, the best first.

The criteria, in order of priority:

1. Up: an engine that is known to be down ranks last, but stays in the list: the information may be outdated, and a
   refused connection costs little.
2. Context: engines that certainly have room for the request come first, then those with the largest context. An engine
   that is certainly too small is left out (context_length.py).
3. Backlog: engines with a backlog rank below engines without one.
4. Task: an engine that is clearly slower than another of the model ranks below it, and so does one whose draft slows it
   down at its load (draft_stats.py). Then come the engines for the task, then those for `any`, then those for the other
   task. Engines with drafts exchange these places by what their drafts are worth (draft_preference.py).
5. Affinity (affinity.py) and load, among engines that are equal so far.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from router.core.routing.affinity import is_within_load_bound, rendezvous_weight
from router.core.routing.context_length import Fit, TokenBounds, check_fit
from router.core.routing.draft_preference import DraftRank
from router.core.types import EngineTask, Task

BACKLOG_RATIO: Final = 0.25
"""More waiting requests than this share of the running ones are a backlog."""

_MIN_BACKLOG: Final = 4  # so few waiting requests are no backlog: vLLM's next step may start all of them


class EngineSnapshot(msgspec.Struct, frozen=True):
    """What is known about an engine. None is unknown, which is different from 0.

    - `url`: identifies the engine, whatever its name; empty: its name does.
    - `up`: None before the first probe; it ranks like an engine that is up.
    - `in_flight`: requests that this process has at the engine now.
    - `external_load`: other requests at the engine, running or waiting, as of the last probe.
    - `running`, `waiting`: the engine's own metrics, as of the last probe.
    - `max_model_len`: its context length in tokens. `shortens`: see EngineTraits.shortens_answers.
    - `slow`: another engine of the model is clearly faster for this request.
    - `draft_rank`: None for an engine without a draft; its configured task decides.
    """

    name: str
    task: EngineTask
    up: bool | None
    in_flight: int
    external_load: float | None = None
    running: float | None = None
    waiting: float | None = None
    max_model_len: int | None = None
    shortens: bool = False
    slow: bool = False
    drained: bool = False
    draft_rank: DraftRank | None = None
    url: str = ""

    @property
    def has_backlog(self) -> bool:
        return self.waiting is not None and self.waiting > max(_MIN_BACKLOG, BACKLOG_RATIO * (self.running or 0.0))

    @property
    def load(self) -> float:
        """The number of its requests, with the new one."""
        # `in_flight` is current, while `external_load` is as old as the last probe.
        return 1 + self.in_flight + (self.external_load or 0.0)


def task_distance(configured: EngineTask, task: Task) -> int:
    return 0 if configured == task else 1 if configured == "any" else 2


def rank_engines(
    task: Task, engines: Iterable[EngineSnapshot], *, bounds: TokenBounds | None = None, home: int = 0
) -> list[EngineSnapshot]:
    """The engines in the order in which they are to be tried, without drained ones and those that are too small.

    `home`: see affinity.py; 0 for a request without one.
    """
    usable = [
        engine
        for engine in engines
        if not engine.drained
        and (bounds is None or check_fit(bounds, engine.max_model_len, shortens=engine.shortens) is not Fit.TOO_LONG)
    ]
    # An unknown context counts as the smallest known one, so that being unknown decides nothing by itself.
    smallest_context = min(
        (engine.max_model_len for engine in usable if engine.max_model_len is not None), default=None
    )

    def grade(engine: EngineSnapshot) -> tuple[bool, bool, int, bool, bool, DraftRank]:
        context = engine.max_model_len or smallest_context
        certainly_fits = bounds is None or check_fit(bounds, context) is Fit.FITS
        # Among engines that may be too small, the largest is the best guess.
        context_rank = 0 if certainly_fits else -(context or 0)
        rank = engine.draft_rank or DraftRank(task_distance(engine.task, task), 0)
        # Known to be down; may be too small; larger contexts first; has a backlog; slower; distance of the task.
        return engine.up is False, not certainly_fits, context_rank, engine.has_backlog, engine.slow, rank

    ranked: list[EngineSnapshot] = []
    for _, equal_engines in groupby(sorted(usable, key=grade), key=grade):
        ranked += _rank_equals(list(equal_engines), home)
    return ranked


def _rank_equals(engines: Sequence[EngineSnapshot], home: int) -> list[EngineSnapshot]:
    if not home or len(engines) == 1:
        return sorted(engines, key=lambda engine: (engine.load, engine.name))
    loads = [engine.load for engine in engines]

    def affinity_order(engine: EngineSnapshot) -> tuple[bool, int, str]:
        # Overloaded engines last; then the highest weight first; the name makes the order the same in all processes.
        weight = rendezvous_weight(home, engine.url or engine.name)
        return not is_within_load_bound(engine.load, loads), -weight, engine.name

    return sorted(engines, key=affinity_order)
