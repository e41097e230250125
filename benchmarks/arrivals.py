"""When requests arrive, and what each of them asks: plain functions of a random number generator.

Arrivals of an open loop do not depend on responses. A ramp is a sequence of phases, each with its rate.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

from router.settings.units import Seconds, parse_quantity

MAX_PROMPTS: Final = 10_000_000
"""Different prompts of a Zipf distribution; each takes 8 bytes."""


class Phase(NamedTuple):
    """A part of a load: `rate` in requests per second, for `seconds`."""

    rate: float
    seconds: float


def seconds_of(duration: str) -> float:
    """Seconds of "90s", "5m" or "1h". Raises ValueError."""
    try:
        return float(parse_quantity(Seconds, duration.strip()))
    except ValueError as error:
        raise ValueError(f"{duration!r} {error}") from None


def parse_phases(text: str) -> list[Phase]:
    """The phases of "50:30s,200:1m": rate, colon, duration. Raises ValueError."""
    phases = []
    for part in text.split(","):
        rate, colon, duration = part.strip().partition(":")
        if not colon:
            raise ValueError(f"{part.strip()!r} is not RATE:DURATION, such as 50:30s")
        phase = Phase(float(rate), seconds_of(duration))
        if not (0 < phase.rate <= 100_000 and phase.seconds > 0):
            raise ValueError(f"{part.strip()!r}: the rate must be above 0 and at most 100000, the duration above 0")
        phases.append(phase)
    return phases


def arrival_times(phases: Sequence[Phase], rng: Random | None) -> Iterator[float]:
    """Seconds since the start, ascending. With `rng`, a Poisson process; without, equal distances."""
    start = 0.0
    for rate, seconds in phases:
        if rng is None:
            yield from (start + number / rate for number in range(round(rate * seconds)))
        else:
            # A Poisson process has no memory, so each phase may begin with a new interval.
            time = start + rng.expovariate(rate)
            while time < start + seconds:
                yield time
                time += rng.expovariate(rate)
        start += seconds


class Zipf:
    """Numbers from 0 to `count` - 1; number k has a probability proportional to (k + 1) ** -exponent."""

    def __init__(self, count: int, exponent: float) -> None:
        """Raises ValueError if `count` is not in 1 to MAX_PROMPTS or the exponent is negative."""
        if not 0 < count <= MAX_PROMPTS or exponent < 0:
            raise ValueError(f"a Zipf distribution has 1 to {MAX_PROMPTS} prompts and an exponent of at least 0")
        self._cumulated = array("d", accumulate((rank + 1) ** -exponent for rank in range(count)))

    def draw(self, rng: Random) -> int:
        place = rng.random() * self._cumulated[-1]
        return min(bisect_right(self._cumulated, place), len(self._cumulated) - 1)


class Kind(Enum):
    """What an arrival asks: a prompt that is in flight, one that was never asked, or one of the Zipf distribution."""

    FOLLOWER = "follower"
    NEW = "new"
    POPULAR = "popular"


class Mix(NamedTuple):
    """Shares (0 to 1) of all arrivals; the rest of `followers` and `new` is drawn from the Zipf distribution.

    `stream`: the share with "stream": true. `leave`: the share of the streams whose client disconnects after a few
    events.
    """

    followers: float = 0.0
    new: float = 0.0
    stream: float = 1.0
    leave: float = 0.0

    def kind(self, rng: Random, in_flight: int) -> Kind:
        """Without a request in flight, a follower becomes a popular prompt."""
        place = rng.random()
        if place < self.followers:
            return Kind.FOLLOWER if in_flight else Kind.POPULAR
        return Kind.NEW if place < self.followers + self.new else Kind.POPULAR
