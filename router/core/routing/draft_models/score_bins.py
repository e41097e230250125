"""Divides the classifier's score into bins: what is learned of a draft is learned for each bin."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, get_args

from router.core.types import Task

TASKS: Final[tuple[Task, ...]] = get_args(Task)

# Log-odds, symmetric. About 20 % of the prompts are between -1 and 1: neither clearly code nor clearly chat.
_EDGES: Final = [-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0]

BINS: Final = len(_EDGES) + 1
_FIRST_CODE_BIN: Final = BINS // 2


def score_bin(log_odds: float) -> int:
    """The bin of a score, from 0 (certainly chat) to BINS - 1 (certainly code)."""
    return bisect_left(_EDGES, log_odds)


def task_of(bin_: int) -> Task:
    return "code" if bin_ >= _FIRST_CODE_BIN else "chat"


def bins_of(task: Task) -> Sequence[int]:
    return range(_FIRST_CODE_BIN, BINS) if task == "code" else range(_FIRST_CODE_BIN)
