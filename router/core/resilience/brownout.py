"""What is given up first as pressure on a model rises, and taken back last as it falls."""

from enum import IntEnum
from typing import Final


class Level(IntEnum):
    """Each holds what the ones before it do.

    - FALLBACK: new work goes to the fallback model first, if it is well itself.
    - STALE: an answer that is stored and has outlived its time is given at once, instead of a new one.

    Beyond that there is nothing to decide: with no engine left that takes work, it is the fallback model, a stale
    answer, or 503.
    """

    NORMAL = 0
    FALLBACK = 1
    STALE = 2


_RISES_AT: Final = {Level.FALLBACK: 0.5, Level.STALE: 0.75}
_FALLS_BELOW: Final = {Level.FALLBACK: 0.25, Level.STALE: 0.5}


def level(share: float, before: Level) -> Level:
    """The level for that share (0 to 1) of a model's engines being under pressure, where it was `before` until now."""
    rising = max((at for at in _RISES_AT if share >= _RISES_AT[at]), default=Level.NORMAL)
    holding = max((at for at in _FALLS_BELOW if at <= before and share >= _FALLS_BELOW[at]), default=Level.NORMAL)
    return max(rising, holding)
