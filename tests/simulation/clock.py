"""The clocks and the randomness of a simulation, in place of the operating system's.

`install` must run before `router` is imported: functions such as `time.time` are default arguments there. It changes
the whole interpreter, so the simulation runs in an interpreter of its own.
"""

import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

EPOCH: Final = 1_750_000_000.0
"""What a wall clock without an offset shows when the virtual time is 0."""


class VirtualClock:
    """The virtual time, in seconds, and by how much the wall clock of the process that runs now is off."""

    __slots__ = ("now", "offset")

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 0.0


CLOCK: Final = VirtualClock()


def wall_time() -> float:
    return EPOCH + CLOCK.now + CLOCK.offset


def monotonic() -> float:
    return CLOCK.now


def _entropy(size: int) -> bytes:
    return random.getrandbits(8 * size).to_bytes(size, "big") if size else b""


def _uuid4() -> uuid.UUID:
    return uuid.UUID(bytes=_entropy(16), version=4)


def _nanoseconds(clock: Callable[[], float]) -> Callable[[], int]:
    return lambda: int(clock() * 1e9)


def install() -> None:
    """Replaces what tells the time and what is random. Only for an interpreter that does nothing else."""
    for name, clock in (("time", wall_time), ("monotonic", monotonic), ("perf_counter", monotonic)):
        setattr(time, name, clock)
        setattr(time, f"{name}_ns", _nanoseconds(clock))
    replaced: list[tuple[Any, str, Any]] = [
        (os, "urandom", _entropy),
        (random, "_urandom", _entropy),  # that of SystemRandom, so of `secrets`
        (uuid, "uuid4", _uuid4),
    ]
    for module, name, value in replaced:
        setattr(module, name, value)


def reset(seed: int) -> None:
    """Begins anew, at virtual time 0."""
    CLOCK.now = CLOCK.offset = 0.0
    random.seed(seed)
