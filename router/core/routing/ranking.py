"""Which engines may do a piece of work, the best first.

What counts, from the first to the last:

1. An engine that is known to be down comes last and not never: what is known may be old, and a refused connection costs
   little.
2. The context: an engine that can surely take the request, then the one with the largest; one that never could is not
   asked at all (lengths.py).
3. The crowd: an engine at which many wait already comes behind those at which hardly anyone does.
4. The task: an engine that has proved clearly slower at it than another of the model comes behind (speculation.py);
   else its draft's own task, then `any`, then the other's.
5. Among those that are the same so far, affinity (affinity.py), and then who has less to do.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from router.core.routing.affinity import is_within_load_bound, rendezvous_weight
from router.core.routing.context_length import Fit, TokenBounds, check_fit
from router.core.types import EngineTask, Task

BACKLOG_RATIO: Final = 0.25
"""How many may wait at an engine, as a share of those that it works on, before it is crowded."""

_MIN_BACKLOG: Final = 4  # waiting requests that mean nothing: vLLM's next step may take them all
_MAX_KV_USAGE: Final = 0.95  # of a KV cache; a share nearer to 1 would tell nothing more


class EngineSnapshot(msgspec.Struct, frozen=True):
    """What the choice knows of an engine. None is unknown, which is never 0.

    - `up`: None until somebody has asked it; then it may well be up.
    - `in_flight`: what this router has it do at this moment; `others`: what it did besides when it was last asked, for
      other routers or of its own queue, in requests.
    - `running`, `waiting`: what the engine itself said then.
    - `kv_cache_usage`: share of its KV cache in use when it was last asked, 0 to 1.
    - `max_model_len`: its context in tokens.
    - `slow`: whether another engine has proved clearly faster at this task.
    """

    name: str
    task: EngineTask
    up: bool | None
    in_flight: int
    external_load: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    max_model_len: int | None = None
    slow: bool = False
    drained: bool = False

    @property
    def has_backlog(self) -> bool:
        """Whether a request would have to wait there, as far as is known."""
        return self.waiting is not None and self.waiting > max(_MIN_BACKLOG, BACKLOG_RATIO * (self.running or 0.0))

    def load(self, default_kv_usage: float) -> float:
        """Requests that it would have to work on with one more, weighed by how full its KV cache is.

        What is in flight from here counts at once; what else is known of it is as old as the last probe. `usual`: the
        usage of a cache that does not tell it.
        """
        work = 1 + self.in_flight + (self.external_load or 0.0)
        usage = self.kv_cache_usage if self.kv_cache_usage is not None else default_kv_usage
        return work / (1 - min(usage, _MAX_KV_USAGE))


def rank_engines(
    task: Task, engines: Iterable[EngineSnapshot], *, bounds: TokenBounds | None = None, affinity: str | None = None
) -> list[EngineSnapshot]:
    """The engines of a model in the order in which they are to be tried.

    None that could never take the request, and none that is drained.
    """
    able = [
        engine
        for engine in engines
        if not engine.drained and (bounds is None or check_fit(bounds, engine.max_model_len) is not Fit.TOO_LONG)
    ]
    # One that does not say how large it is counts as no larger than the others, so that this alone decides nothing.
    smallest = min((engine.max_model_len for engine in able if engine.max_model_len is not None), default=None)

    def grade(engine: EngineSnapshot) -> tuple[bool, bool, int, bool, bool, int]:
        """What counts before affinity and load."""
        size = engine.max_model_len or smallest
        surely = bounds is None or check_fit(bounds, size) is Fit.FITS
        # Where none surely suffices, the largest is the best guess.
        room = 0 if surely else -(size or 0)
        distance = 0 if engine.task == task else 1 if engine.task == "any" else 2
        return engine.up is False, not surely, room, engine.has_backlog, engine.slow, distance

    order: list[EngineSnapshot] = []
    for _, equals in groupby(sorted(able, key=grade), key=grade):
        order += _rank_equals(list(equals), affinity)
    return order


def _rank_equals(engines: Sequence[EngineSnapshot], affinity: str | None) -> list[EngineSnapshot]:
    known = [engine.kv_cache_usage for engine in engines if engine.kv_cache_usage is not None]
    usual = sum(known) / len(known) if known else 0.0

    def idlest(engine: EngineSnapshot) -> tuple[float, str]:
        return engine.load(usual), engine.name

    if affinity is None or len(engines) == 1:
        return sorted(engines, key=idlest)
    loads = [engine.load(usual) for engine in engines]

    def nearest(engine: EngineSnapshot) -> tuple[bool, int, str]:
        return (
            not is_within_load_bound(engine.load(usual), loads),
            -rendezvous_weight(affinity, engine.name),
            engine.name,
        )

    return sorted(engines, key=nearest)
