"""The clocks and the randomness of a simulation, in place of the operating system's.

Call `install` before importing `router`: functions such as `time.time` are default arguments there. It changes the
whole interpreter. A program that only simulates makes the clocks virtual for ever; the tests in tests/world do so for
one scenario at a time, with `virtual_time`.
"""

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

EPOCH: Final = 1_750_000_000.0
"""The wall clock without an offset at virtual time 0."""


class VirtualClock:
    """The virtual time in seconds, and the wall clock's offset in the current process.

    `is_used`: whether the interpreter's clocks show it, or else the real time.
    """

    __slots__ = ("is_used", "now", "offset")

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 0.0
        self.is_used = False


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


class _Switch:
    """Calls `virtual` while the virtual clock is used, and else `real`. An object: a function would bind to a class."""

    __slots__ = ("_real", "_virtual")

    def __init__(self, real: Callable[..., Any], virtual: Callable[..., Any]) -> None:
        self._real = real
        self._virtual = virtual

    def __call__(self, *arguments: Any) -> Any:
        return self._virtual(*arguments) if CLOCK.is_used else self._real(*arguments)


def install(*, is_used: bool = True) -> None:
    """Replace the interpreter's clocks and random sources. `is_used`: of the virtual clock."""
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (os, "urandom", _entropy),
        (random, "_urandom", _entropy),  # used by SystemRandom, thus by `secrets`
        (uuid, "uuid4", _uuid4),
    ]
    for name, clock in (("time", wall_time), ("monotonic", monotonic), ("perf_counter", monotonic)):
        replaced += [(time, name, clock), (time, f"{name}_ns", _nanoseconds(clock))]
    for module, name, virtual in replaced:
        setattr(module, name, _Switch(getattr(module, name), virtual))
    CLOCK.is_used = is_used


def reset(seed: int) -> None:
    """Return to virtual time 0."""
    CLOCK.now = CLOCK.offset = 0.0
    random.seed(seed)


@contextmanager
def virtual_time(seed: int) -> Iterator[None]:
    """Uses the virtual clock from time 0, and random numbers from the seed, until the end of the block."""
    state = random.getstate()
    CLOCK.is_used = True
    reset(seed)
    try:
        yield
    finally:
        CLOCK.is_used = False
        random.setstate(state)
