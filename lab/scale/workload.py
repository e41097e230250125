"""Who asks what, and when: users with sessions and pauses, or arrivals at a given rate."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lab.scale.event_loop import EventLoop
from lab.scale.outcomes import Outcome
from lab.scale.popularity import Popularity
from lab.scale.system import System


class Workload(NamedTuple):
    """What is asked. `repeatable`: the share of requests with a prompt of `popularity`; others are unique.

    `tokens`: of a response, given a source of randomness. Tenants have equal shares.
    """

    popularity: Popularity
    repeatable: float
    tokens: Callable[[Random], int]
    tenants: int = 10


class Sessions(NamedTuple):
    """A user sends `turns` requests on average, `think` seconds after each response, then pauses; means, in seconds."""

    turns: float
    think: float
    pause: float

    def rate(self, response: float) -> float:
        """Requests per second of one user, if a response takes this many seconds."""
        return self.turns / (self.turns * response + (self.turns - 1) * self.think + self.pause)


def exponential_tokens(mean: float, limit: int) -> Callable[[Random], int]:
    """Lengths of responses: exponentially distributed, from 1 to `limit`."""
    return lambda random: max(1, min(limit, int(random.expovariate(1 / mean))))


class Traffic:
    """Sends the requests of a workload to a system."""

    def __init__(self, loop: EventLoop, random: Random, system: System, workload: Workload) -> None:
        self._loop = loop
        self._random = random
        self._system = system
        self._workload = workload

    def arrivals(self, rate: float) -> None:
        """`rate` requests per second at random instants, whatever becomes of the earlier ones (an open loop)."""
        self._loop.after(self._random.expovariate(rate), self._arrive, rate)

    def users(self, count: int, sessions: Sessions, *, response: float) -> None:
        """`count` users in the middle of what they do; `response`: about how many seconds a response takes."""
        cycle = sessions.turns / sessions.rate(response)
        for number in range(count):
            # Pauses and times to think are exponential, so what is left of one has the same distribution.
            pauses = self._random.random() * cycle < sessions.pause
            wait = self._random.expovariate(1 / (sessions.pause if pauses else sessions.think))
            self._loop.after(wait, self._ask, f"tenant-{number % self._workload.tenants}", sessions)

    def _arrive(self, rate: float) -> None:
        self._loop.after(self._random.expovariate(rate), self._arrive, rate)
        self._send(f"tenant-{self._random.randrange(self._workload.tenants)}", lambda outcome, retry_after: None)

    def _ask(self, tenant: str, sessions: Sessions) -> None:
        def on_outcome(_: Outcome, retry_after: int) -> None:
            last = self._random.random() * sessions.turns < 1
            wait = self._random.expovariate(1 / (sessions.pause if last else sessions.think))
            # A client that was refused tries again after Retry-After, as OpenAI's do.
            self._loop.after(retry_after or wait, self._ask, tenant, sessions)

        self._send(tenant, on_outcome)

    def _send(self, tenant: str, on_outcome: Callable[[Outcome, int], None]) -> None:
        workload, random = self._workload, self._random
        repeatable = random.random() < workload.repeatable
        prompt = workload.popularity.draw(random, self._loop.now) if repeatable else None
        self._system.request(tenant, prompt, workload.tokens(random), on_outcome)
