"""Ranks the engines of a model for a request, the best first.

The criteria, in order of priority:

1. Up: an engine that is known to be down ranks last, but stays in the list: the information may be outdated, and a
   refused connection costs little.
2. Context: engines that certainly have room for the request come first, then those with the largest context. An engine
   that is certainly too small is left out (context_length.py).
3. Seconds: the cost of the prompt, which is mostly the time to the first token (prefill.py), and the time of the answer
   (answer_time.py). Replicas differ in the first only. Engines whose answers take different times are also compared by
   how long the prompt delays the answers of others there.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from router.core.routing.context_length import check_fit
from router.core.routing.token_bounds import Fit, TokenBounds
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
    - `answer_seconds`: what the answer takes there, in comparison with other engines of the model.
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
    drained: bool = False
    answer_seconds: float = 0.0
    url: str = ""

    @property
    def has_backlog(self) -> bool:
        return self.waiting is not None and self.waiting > max(_MIN_BACKLOG, BACKLOG_RATIO * (self.running or 0.0))

    @property
    def backlog(self) -> float:
        """The waiting requests for each running one; 0 if they are no backlog."""
        return (self.waiting or 0.0) / max(self.running or 0.0, 1.0) if self.has_backlog else 0.0

    @property
    def load(self) -> float:
        """The number of its requests, with the new one."""
        # `in_flight` is current, while `external_load` is as old as the last probe.
        return 1 + self.in_flight + (self.external_load or 0.0)


def task_distance(configured: EngineTask, task: Task) -> int:
    return 0 if configured == task else 1 if configured == "any" else 2


class PromptCost(NamedTuple):
    """What a prompt costs at an engine, in seconds. `others`: for which it delays the answers of others there."""

    own: float
    others: float = 0.0


Costs = Callable[[Sequence[EngineSnapshot]], Sequence[PromptCost]]
"""The costs at engines whose answers take the same time."""


def loads(engines: Sequence[EngineSnapshot]) -> Sequence[PromptCost]:
    return [PromptCost(engine.load) for engine in engines]


def rank_engines(
    engines: Iterable[EngineSnapshot], *, bounds: TokenBounds | None = None, costs: Costs = loads
) -> list[EngineSnapshot]:
    """The engines in the order in which they are to be tried, without drained ones and those that are too small."""
    return [engine for engine, _ in rank_with_seconds(engines, bounds=bounds, costs=costs)]


def rank_with_seconds(
    engines: Iterable[EngineSnapshot], *, bounds: TokenBounds | None = None, costs: Costs = loads
) -> list[tuple[EngineSnapshot, float | None]]:
    """As rank_engines, each with the seconds by which it was compared; None if it was compared with no other."""
    usable = [
        engine
        for engine in engines
        if not engine.drained
        and (bounds is None or check_fit(bounds, engine.max_model_len, shortens=engine.shortens) is not Fit.TOO_LONG)
    ]
    fit = fit_key(usable, bounds)
    ranked: list[tuple[EngineSnapshot, float | None]] = []
    for _, equally_fit in groupby(sorted(usable, key=fit), key=fit):
        ranked += _by_seconds(list(equally_fit), costs)
    return ranked


def fit_key(
    engines: Iterable[EngineSnapshot], bounds: TokenBounds | None
) -> Callable[[EngineSnapshot], tuple[bool, bool, int]]:
    """The key of the first criteria: whether an engine is down, whether it may be too small, and how small it is."""
    # An unknown context counts as the smallest known one, so that being unknown decides nothing by itself.
    smallest_context = min(
        (engine.max_model_len for engine in engines if engine.max_model_len is not None), default=None
    )

    def fit(engine: EngineSnapshot) -> tuple[bool, bool, int]:
        context = engine.max_model_len or smallest_context
        certainly_fits = bounds is None or check_fit(bounds, context) is Fit.FITS
        # Among engines that may be too small, the largest is the best guess.
        context_rank = 0 if certainly_fits else -(context or 0)
        return engine.up is False, not certainly_fits, context_rank

    return fit


def _by_seconds(engines: list[EngineSnapshot], costs: Costs) -> list[tuple[EngineSnapshot, float | None]]:
    if len(engines) == 1:
        return [(engines[0], None)]
    rows: list[tuple[float, float, str, EngineSnapshot]] = []
    for seconds, group in groupby(sorted(engines, key=_answer_seconds), key=_answer_seconds):
        equals = list(group)
        found = costs(equals)
        seconds += min(found).others
        # The name makes the order the same in all processes.
        rows += [
            (seconds + cost.own, engine.load, engine.name, engine) for cost, engine in zip(found, equals, strict=True)
        ]
    return [(row[3], row[0]) for row in sorted(rows, key=lambda row: row[:3])]


def _answer_seconds(engine: EngineSnapshot) -> float:
    return engine.answer_seconds
