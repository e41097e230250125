"""Brownout: which quality of service to give up as the pressure on a model rises."""

from enum import IntEnum
from typing import Final


class BrownoutLevel(IntEnum):
    """Each level includes the ones before it.

    - FALLBACK: new requests go to the fallback model first, unless that is under pressure itself.
    - STALE: a stale response is served immediately instead of a new one.

    There is no higher level: if no engine accepts work, the fallback model, a stale response or 503 follow anyway.
    """

    NORMAL = 0
    FALLBACK = 1
    STALE = 2


# A level is entered at one share and left below a lower one (hysteresis), so that it does not flap.
_ENTER_AT: Final = {BrownoutLevel.FALLBACK: 0.5, BrownoutLevel.STALE: 0.75}
_LEAVE_BELOW: Final = {BrownoutLevel.FALLBACK: 0.25, BrownoutLevel.STALE: 0.5}


def brownout_level(pressured_share: float, previous: BrownoutLevel) -> BrownoutLevel:
    """The level at which `pressured_share` (0 to 1) of a model's engines are under pressure, after level `previous`."""
    entered = max((level for level in _ENTER_AT if pressured_share >= _ENTER_AT[level]), default=BrownoutLevel.NORMAL)
    held = max(
        (level for level in _LEAVE_BELOW if level <= previous and pressured_share >= _LEAVE_BELOW[level]),
        default=BrownoutLevel.NORMAL,
    )
    return max(entered, held)
