"""The clocks and the randomness of a simulation, in place of the operating system's.

Call `install` before importing `router`: functions such as `time.time` are default arguments there. It changes the
whole interpreter, so the simulation runs in an interpreter of its own.
"""

import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

EPOCH: Final = 1_750_000_000.0
"""The wall clock without an offset at virtual time 0."""


class VirtualClock:
    """The virtual time in seconds, and the wall clock's offset in the current process."""

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
    """Replace the interpreter's clocks and random sources."""
    for name, clock in (("time", wall_time), ("monotonic", monotonic), ("perf_counter", monotonic)):
        setattr(time, name, clock)
        setattr(time, f"{name}_ns", _nanoseconds(clock))
    replaced: list[tuple[Any, str, Any]] = [
        (os, "urandom", _entropy),
        (random, "_urandom", _entropy),  # used by SystemRandom, thus by `secrets`
        (uuid, "uuid4", _uuid4),
    ]
    for module, name, value in replaced:
        setattr(module, name, value)


def reset(seed: int) -> None:
    """Return to virtual time 0."""
    CLOCK.now = CLOCK.offset = 0.0
    random.seed(seed)
