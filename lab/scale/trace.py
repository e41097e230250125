"""Arrivals that are drawn once, and then both sent to real routers and simulated."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from lab.scale.caches import Cache, ExplicitCache
from lab.scale.costs import Costs
from lab.scale.event_loop import EventLoop
from lab.scale.outcomes import Outcome
from lab.scale.popularity import Popularity, Prompt
from lab.scale.system import Load, Size, System


class Arrival(NamedTuple):
    """`at`: seconds from the start. `process`: the router process that gets it. `tokens`: of its response."""

    at: float
    process: int
    prompt: Prompt
    tokens: int


class Asked(NamedTuple):
    """What a trace is drawn from: `rate` per second for `seconds`; tokens from `low` to `high`, fixed by the prompt."""

    rate: float
    seconds: float
    popularity: Popularity
    repeatable: float
    low: int
    high: int


def draw_trace(asked: Asked, processes: int, seed: int) -> list[Arrival]:
    random = Random(seed)
    trace: list[Arrival] = []
    now = random.expovariate(asked.rate)
    while now < asked.seconds:
        unique = Prompt(0, len(trace))  # nobody repeats it: no rank is 0
        prompt = asked.popularity.draw(random, now) if random.random() < asked.repeatable else unique
        # By the prompt, since the same request has the same response.
        tokens = Random(prompt.rank * 1_000_003 + prompt.number).randint(asked.low, asked.high)
        trace.append(Arrival(now, random.randrange(processes), prompt, tokens))
        now += random.expovariate(asked.rate)
    return trace


def simulate(
    trace: Sequence[Arrival], size: Size, costs: Costs, *, seconds: float, ttl: float, local_entries: int, seed: int
) -> tuple[list[Outcome], Load]:
    """The outcomes of all arrivals, and the load over `seconds`, from the first arrival on."""
    loop = EventLoop()
    cache: Cache = ExplicitCache(size.processes, ttl=ttl, local_entries=local_entries)
    system = System(loop, Random(seed), size, costs, cache)
    for arrival in trace:
        loop.after(
            arrival.at,
            lambda each=arrival: system.request("default", each.prompt, each.tokens, process=each.process),
        )
    loop.run(seconds)
    load = system.load(seconds)
    loop.run(seconds + 120)  # what is still running ends
    return system.outcomes, load
