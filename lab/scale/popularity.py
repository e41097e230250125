"""Which prompts are asked: a Zipf distribution whose prompts are replaced over time, and what a cache makes of it.

The prompt at a rank is replaced by a new one every `lifetime` seconds, each rank at its own phase, so popular questions
are new ones from time to time.
"""

from collections.abc import Iterator, Sequence
from math import exp, expm1, log
from random import Random
from typing import NamedTuple

from router.core.routing.prefix_cache.affinity import rendezvous_weight


class Prompt(NamedTuple):
    """A prompt: the rank that it has, from 1, and which of the rank's prompts it is."""

    rank: int
    number: int


class Popularity(NamedTuple):
    """`prompts` ranks; rank r has a share that falls as r ** -exponent. `lifetime` in seconds."""

    prompts: int
    exponent: float
    lifetime: float

    def draw(self, random: Random, now: float) -> Prompt:
        rank = self._rank(random.random())
        # Any fixed number of the rank will do; Python's own hash of an int is the int.
        phase = (rendezvous_weight(0, str(rank)) & 0xFFFF) / 0x10000
        return Prompt(rank, int(now / self.lifetime + phase))

    def share(self, rank: int) -> float:
        """The share of the requests that the prompt at this rank has."""
        return self._cumulative(rank + 1) - self._cumulative(rank)

    def _rank(self, share: float) -> int:
        """The rank below which the prompts have this share: the inverse of `_cumulative`."""
        if self.exponent == 1:
            return int((self.prompts + 1) ** share)
        power = 1 - self.exponent
        return min(self.prompts, int((share * ((self.prompts + 1) ** power - 1) + 1) ** (1 / power)))

    def _cumulative(self, rank: float) -> float:
        """The share of all ranks below this one. The sum is replaced by the integral, which can be inverted."""
        if self.exponent == 1:
            return log(rank) / log(self.prompts + 1)
        power = 1 - self.exponent
        return float((rank**power - 1) / ((self.prompts + 1) ** power - 1))

    def groups(self) -> Iterator[tuple[int, float]]:
        """Groups of neighbouring ranks with similar popularity: how many ranks, and the share of each."""
        low = 1
        while low <= self.prompts:
            high = min(self.prompts + 1, max(low + 1, int(low * 1.05)))
            yield high - low, (self._cumulative(high) - self._cumulative(low)) / (high - low)
            low = high


class Shares(NamedTuple):
    """What becomes of the requests for a prompt, or for all: shares that add up to 1. `local` is a part of `hit`."""

    hit: float
    follower: float
    miss: float
    local: float = 0.0


def stationary_shares(rate: float, *, ttl: float, lifetime: float, generation: float) -> Shares:
    """Of a prompt that is asked `rate` times per second, at random instants; times in seconds.

    With TTL: a cycle is one miss, then followers while it is generated, then hits until it expires, then a wait of
    1 / rate on average for the next request. A prompt that is replaced before its TTL has one miss in its lifetime if
    it is asked at all.
    """
    if rate <= 0:
        return Shares(0.0, 0.0, 1.0)
    asked = rate * lifetime
    miss = -expm1(-asked) / asked if lifetime <= ttl else 1 / (1 + rate * (generation + ttl))
    follower = min(miss * rate * generation, 1 - miss)
    return Shares(1 - miss - follower, follower, miss)


def characteristic_time(rates: Sequence[tuple[int, float]], capacity: float) -> float:
    """How long an entry stays in an LRU cache of `capacity` entries that is asked at these rates.

    Source: Che, Tung and Wang, Hierarchical Web Caching Systems (2002). `rates`: groups of prompts and the rate of
    each. Infinity if all of them fit.
    """

    def held(seconds: float) -> float:
        return sum(count * -expm1(-rate * seconds) for count, rate in rates)

    if sum(count for count, rate in rates if rate > 0) <= capacity:
        return float("inf")
    low, high = 0.0, 1.0
    while held(high) < capacity:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < capacity else (low, middle)
    return high


def in_cache(rate: float, time: float) -> float:
    """The probability that a prompt asked at this rate is in an LRU cache with this characteristic time."""
    return 1 - exp(-rate * time) if rate > 0 else 0.0
