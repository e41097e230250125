"""The data-parallel ranks of an engine: each is an engine core of its own, with its own queue and KV cache."""

from collections.abc import Mapping, Sequence
from typing import Final

from engines.simulator.engine.core import EngineCore
from engines.simulator.rejections import Rejection

RANK_HEADER: Final = "x-data-parallel-rank"


class Ranks:
    """Chooses the rank of each request as vLLM: the one that its header names, else the one with the fewest requests.

    Of equal ones, the next in turn.
    """

    def __init__(self, cores: Sequence[EngineCore]) -> None:
        self.cores = cores
        self._next = 0

    def choose(self, headers: Mapping[str, str]) -> EngineCore:
        """Raises Rejection for a rank that does not exist. A header that is no number counts as none."""
        rank, count = _rank(headers), len(self.cores)
        if rank is None:
            order = [(self._next + step) % count for step in range(count)]
            rank = min(order, key=lambda each: _requests(self.cores[each]))
            self._next = (self._next + 1) % count
        elif not 0 <= rank < count:
            raise Rejection(400, f"data_parallel_rank {rank} is out of range [0, {count}).")
        return self.cores[rank]


def _rank(headers: Mapping[str, str]) -> int | None:
    try:
        return int(headers[RANK_HEADER])
    except (KeyError, ValueError):
        return None


def _requests(core: EngineCore) -> int:
    return core.scheduler.running + core.scheduler.waiting
