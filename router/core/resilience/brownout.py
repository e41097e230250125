"""What is given up first as pressure on a model rises, and taken back last as it falls."""

from enum import IntEnum
from typing import Final


class BrownoutLevel(IntEnum):
    """Each holds what the ones before it do.

    - FALLBACK: new work goes to the fallback model first, if it is well itself.
    - STALE: an answer that is stored and has outlived its time is given at once, instead of a new one.

    Beyond that there is nothing to decide: with no engine left that takes work, it is the fallback model, a stale
    answer, or 503.
    """

    NORMAL = 0
    FALLBACK = 1
    STALE = 2


_ENTER_AT: Final = {BrownoutLevel.FALLBACK: 0.5, BrownoutLevel.STALE: 0.75}
_LEAVE_BELOW: Final = {BrownoutLevel.FALLBACK: 0.25, BrownoutLevel.STALE: 0.5}


def brownout_level(pressured_share: float, previous: BrownoutLevel) -> BrownoutLevel:
    """The level for that share (0 to 1) of a model's engines being under pressure, where it was `before` until now."""
    rising = max((at for at in _ENTER_AT if pressured_share >= _ENTER_AT[at]), default=BrownoutLevel.NORMAL)
    holding = max(
        (at for at in _LEAVE_BELOW if at <= previous and pressured_share >= _LEAVE_BELOW[at]),
        default=BrownoutLevel.NORMAL,
    )
    return max(rising, holding)
