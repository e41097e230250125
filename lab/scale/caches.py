"""What becomes of a request at the cache: a local hit, a hit in Redis, a follower of a generation, or a miss.

There are two models. `ExplicitCache` keeps every entry and every generation, for small systems and for real runs beside
it. `StationaryCache` draws from the shares of a cache that has run for long, for systems of which only a part is
simulated: there, the entries that the other parts would have stored are missing, so they cannot be kept one by one.
"""

from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from lab.scale.popularity import Popularity, Prompt, Shares, characteristic_time, in_cache, stationary_shares

_MIN_GENERATION: Final = 0.01  # seconds, before the first generation has ended


class Generation:
    """A generation that requests may share: when it gives its first token and its end; None until then.

    `process`: the router process that leads. `tokens`: of its response.
    """

    __slots__ = ("_on_end", "_on_first", "ended", "failed", "first", "process", "started", "tokens")

    def __init__(self, process: int, started: float, tokens: int) -> None:
        self.process = process
        self.started = started
        self.tokens = tokens
        self.first: float | None = None
        self.ended: float | None = None
        self.failed = False
        self._on_first: list[Callable[[], None]] = []
        self._on_end: list[Callable[[bool], None]] = []

    def follow(self, on_first: Callable[[], None], on_end: Callable[[bool], None]) -> None:
        """`on_end` gets whether the generation succeeded."""
        if self.first is not None:
            on_first()
        else:
            self._on_first.append(on_first)
        self._on_end.append(on_end)

    def has_first(self, now: float) -> None:
        self.first = now
        for callback in self._on_first:
            callback()

    def has_ended(self, now: float, *, failed: bool = False) -> None:
        self.ended, self.failed = now, failed
        for callback in self._on_end:
            callback(not failed)


class Cache(Protocol):
    """What the system asks of either model."""

    def is_local(self, process: int, prompt: Prompt, now: float) -> bool:
        """Whether the process has the entry in its memory."""

    def look_up(self, process: int, prompt: Prompt, now: float) -> "bool | Generation":
        """True: Redis has the entry. A generation: it is to be followed. False: a miss."""

    def begin(self, prompt: Prompt, generation: Generation) -> None:
        """A miss becomes the generation that others can follow."""

    def end(self, prompt: Prompt, generation: Generation, now: float) -> None:
        """It has ended; a successful one is stored."""


class ExplicitCache:
    """Every entry with its end, every generation in progress, and each process' local cache of entries."""

    def __init__(self, processes: int, *, ttl: float, local_entries: int) -> None:
        self._ttl = ttl
        self._local_entries = local_entries
        self._expires: dict[Prompt, float] = {}
        self._generations: dict[Prompt, Generation] = {}
        self._local: list[OrderedDict[Prompt, float]] = [OrderedDict() for _ in range(processes)]

    def is_local(self, process: int, prompt: Prompt, now: float) -> bool:
        local = self._local[process]
        expires = local.get(prompt)
        # An entry that was written again has another end; the local copy was invalidated then.
        if expires is None or expires <= now or expires != self._expires.get(prompt):
            return False
        local.move_to_end(prompt)
        return True

    def look_up(self, process: int, prompt: Prompt, now: float) -> "bool | Generation":
        expires = self._expires.get(prompt, 0.0)
        if expires > now:
            self._keep_local(process, prompt, expires)
            return True
        return self._generations.get(prompt, False)

    def begin(self, prompt: Prompt, generation: Generation) -> None:
        self._generations[prompt] = generation

    def end(self, prompt: Prompt, generation: Generation, now: float) -> None:
        if self._generations.get(prompt) is generation:
            del self._generations[prompt]
        if not generation.failed:
            self._expires[prompt] = now + self._ttl

    def _keep_local(self, process: int, prompt: Prompt, expires: float) -> None:
        if not self._local_entries:
            return
        local = self._local[process]
        local[prompt] = expires
        local.move_to_end(prompt)
        if len(local) > self._local_entries:
            local.popitem(last=False)


class StationaryCache:
    """Draws from the shares of each prompt in the whole system, which has `rate` requests per second.

    The requests of a prompt are independent of one another here; their shares are exact for random arrivals. A follower
    gets a generation that has run for a random part of its time.
    """

    def __init__(
        self, random: Random, popularity: Popularity, *, rate: float, processes: int, ttl: float, local_entries: int
    ) -> None:
        """`rate`: of requests for these prompts, in the whole system; `processes`: of the whole system."""
        self._random = random
        self._popularity = popularity
        self._rate = rate
        self._processes = processes
        self._ttl = ttl
        self._local_entries = local_entries
        self._generation = _MIN_GENERATION  # seconds, the mean of late
        self._recent: list[Generation] = []
        self._shares: dict[int, Shares] = {}
        self._local_time = self._find_local_time()

    def is_local(self, process: int, prompt: Prompt, now: float) -> bool:
        return self._random.random() < self.shares_of(prompt.rank).local

    def look_up(self, process: int, prompt: Prompt, now: float) -> "bool | Generation":
        shares = self.shares_of(prompt.rank)  # of the requests that are not local hits
        draw = self._random.random() * (1 - shares.local)
        if draw < shares.hit - shares.local:
            return True
        if draw < shares.hit - shares.local + shares.follower and self._recent:
            return self._replayed(now)
        return False

    def begin(self, prompt: Prompt, generation: Generation) -> None:
        """Nothing to keep: followers are drawn."""

    def end(self, prompt: Prompt, generation: Generation, now: float) -> None:
        if generation.failed:
            return
        self._generation += 0.02 * (now - generation.started - self._generation)
        self._recent.append(generation)
        if len(self._recent) > 256:
            del self._recent[:128]
            self._shares.clear()  # the mean duration has changed since

    def shares_of(self, rank: int) -> Shares:
        shares = self._shares.get(rank)
        if shares is None:
            shares = self._shares[rank] = self._of_rate(self._rate * self._popularity.share(rank))
        return shares

    def totals(self) -> Shares:
        """Of all requests for these prompts."""
        sums = [0.0, 0.0, 0.0, 0.0]
        for count, share in self._popularity.groups():
            for index, value in enumerate(self._of_rate(self._rate * share)):
                sums[index] += value * share * count
        return Shares(*sums)

    def _of_rate(self, rate: float) -> Shares:
        shares = stationary_shares(rate, ttl=self._ttl, lifetime=self._popularity.lifetime, generation=self._generation)
        kept = in_cache(rate * shares.hit / self._processes, self._local_time) if self._local_entries else 0.0
        return shares._replace(local=shares.hit * kept)

    def _find_local_time(self) -> float:
        # Only hits bring entries into a local cache.
        rates = []
        for count, share in self._popularity.groups():
            rate = self._rate * share
            hit = stationary_shares(rate, ttl=self._ttl, lifetime=self._popularity.lifetime, generation=1.0).hit
            rates.append((count, rate * hit / self._processes))
        return min(characteristic_time(rates, self._local_entries), self._ttl, self._popularity.lifetime)

    def _replayed(self, now: float) -> Generation:
        """A generation like a recent one, of which a random part has passed."""
        model = self._random.choice(self._recent)
        assert model.first is not None
        assert model.ended is not None
        generation = Generation(self._random.randrange(self._processes), now, model.tokens)
        passed = self._random.random() * (model.ended - model.started)
        generation.first = max(now, now + model.first - model.started - passed)
        generation.ended = now + model.ended - model.started - passed
        return generation
