"""Decides whether and when an engine that has exited is started again."""

from collections.abc import Sequence
from typing import Final

import msgspec

INITIAL_DELAY: Final = 1.0
"""Seconds before the first restart; each further one in a row waits twice as long."""

MAX_DELAY: Final = 60.0
"""Seconds; the longest wait."""

STABLE_AFTER: Final = 300.0
"""Seconds of service after which an exit counts as the first one again."""

MAX_FAILED_STARTS: Final = 3
"""Starts in a row that end before the engine is ready, after which it is not started again: it cannot start."""


class Run(msgspec.Struct, frozen=True):
    """One run of an engine that has ended: for how many seconds it was ready; None if it never was."""

    ready_seconds: float | None


class Restart(msgspec.Struct, frozen=True):
    """Start it again after `delay` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """Do not start it again; `reason` for a person."""

    reason: str


def decide_restart(runs: Sequence[Run]) -> Restart | GiveUp:
    """What to do after the last of these runs, the oldest first."""
    failed_starts = 0
    for run in reversed(runs):
        if run.ready_seconds is not None:
            break
        failed_starts += 1
    if failed_starts >= MAX_FAILED_STARTS:
        return GiveUp(f"it ended {failed_starts} times in a row before it was ready")
    unstable = 0
    for run in reversed(runs):
        if run.ready_seconds is not None and run.ready_seconds >= STABLE_AFTER:
            break
        unstable += 1
    # A stable run that ends is the first exit of a new row.
    return Restart(min(MAX_DELAY, INITIAL_DELAY * 2.0 ** max(0, unstable - 1)))
