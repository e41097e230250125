"""Decides which share of its in-flight limit an engine with hot GPUs may use."""

from typing import Final

import msgspec

SEVERE: Final = 5.0
"""Degrees above the limit at which the share is lowered further."""

COOL: Final = 5.0
"""Degrees below the limit from which the share is raised again."""

COOL_FOR: Final = 30.0
"""Seconds below that temperature after which the share is raised by one step."""

_STEPS: Final = (1.0, 0.5, 0.25)


class HeatState(msgspec.Struct, frozen=True):
    """`share` is 1, 0.5 or 0.25; `cool_since`: when the GPUs were cool again, or the share was last raised."""

    share: float = 1.0
    cool_since: float | None = None


def decide_share(state: HeatState, celsius: float | None, limit: float, now: float) -> HeatState:
    """After a reading of the hottest GPU; None is unknown, which changes nothing. `now` in monotonic seconds."""
    if celsius is None:
        return state
    if celsius > limit:
        return HeatState(min(state.share, _STEPS[2] if celsius > limit + SEVERE else _STEPS[1]))
    if state.share == 1.0 or celsius >= limit - COOL:
        return HeatState(state.share)
    if state.cool_since is None:
        return HeatState(state.share, now)
    if now - state.cool_since < COOL_FOR:
        return state
    return HeatState(_STEPS[_STEPS.index(state.share) - 1], now)
