"""A deployment for a number of users: what is assumed, what the simulation says, and what saturates first."""

from random import Random
from typing import NamedTuple

from lab.scale.caches import StationaryCache
from lab.scale.costs import Costs
from lab.scale.event_loop import EventLoop
from lab.scale.outcomes import Summary, summarize
from lab.scale.popularity import Popularity
from lab.scale.speeds import LLAMA_8B_ON_H100, EngineSpeed
from lab.scale.system import Load, Size, System
from lab.scale.workload import Sessions, Traffic, Workload, exponential_tokens

DAY = 86400.0
TARGET_CPU = 0.6
"""The utilization of a router process or a Redis shard that deployments are sized for: peaks need room."""

TARGET_RUNNING = 70.0
"""Concurrent requests that an engine is sized for. LLAMA_8B_ON_H100 then gives four fifths of what it gives with 100;
beyond that, more requests hardly give more tokens, and a small excess of arrivals makes the number grow far."""

FULL_RUNNING = 200.0
"""Concurrent requests at which an engine counts as full: its tokens per second fall beyond."""


class Assumptions(NamedTuple):
    """What users do, and how fast an engine is; nothing of it is measured here.

    `hit`: the share of requests that are to be hits. `tokens`: the mean length of a response. `entry`: the mean number
    of bytes of an entry in a local cache of `local` bytes.
    """

    users: int = 1_000_000
    sessions: Sessions = Sessions(turns=4, think=30, pause=300)
    hit: float = 0.3
    tokens: float = 250
    popularity: Popularity = Popularity(prompts=5_000_000, exponent=1.0, lifetime=DAY)
    ttl: float = DAY
    speed: EngineSpeed = LLAMA_8B_ON_H100
    local: float = 64 * 2**20
    entry: float = 12_000

    @property
    def response(self) -> float:
        """Seconds of a response, about: those of a generation at the target, for the share that is generated."""
        return (1 - self.hit) * self.generation

    @property
    def generation(self) -> float:
        point = self.speed.at(int(TARGET_RUNNING))
        return point.first_token + self.tokens * point.between_tokens

    @property
    def rate(self) -> float:
        """Requests per second of all users."""
        return self.users * self.sessions.rate(self.response)


class Answer(NamedTuple):
    """What a simulation of `size` showed. `full_rate`: requests per second of the whole system."""

    size: Size
    reduction: int
    full_rate: float
    summary: Summary
    load: Load
    first_to_saturate: str


def repeatable_share(assumptions: Assumptions, processes: int) -> float:
    """The share of requests with a popular prompt that gives the assumed share of hits."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        hit = middle * _cache(assumptions, Random(0), processes, middle).totals().hit
        low, high = (middle, high) if hit < assumptions.hit else (low, middle)
    return high


def most_users(assumptions: Assumptions, costs: Costs) -> int:
    """The number of users at which a router process needs all of its target CPU for what others store.

    More processes serve no more of them. Further users need deployments of their own, each with a Redis.
    """
    low, high = 1, 1_000_000_000
    while high - low > low // 1000 + 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if shared_work(assumptions._replace(users=middle), costs) < TARGET_CPU else (low, middle)
        )
    return low


def engines_for(assumptions: Assumptions) -> int:
    generated = assumptions.rate * (1 - assumptions.hit)
    return max(1, -(-int(generated * assumptions.generation) // int(TARGET_RUNNING)))


def shared_work(assumptions: Assumptions, costs: Costs) -> float:
    """The share of its time that each router process spends on the entries of all and on the engines."""
    generated = assumptions.rate * (1 - assumptions.hit)
    return costs.idle + engines_for(assumptions) * costs.idle_engine + generated * costs.invalidation


def size_for(assumptions: Assumptions, costs: Costs) -> Size:
    """By arithmetic: what the rates of hits and generations need at the target utilizations.

    Raises ValueError beyond `most_users`.
    """
    rate, generated = assumptions.rate, assumptions.rate * (1 - assumptions.hit)
    engines = engines_for(assumptions)
    stream = costs.stream + assumptions.tokens * costs.event + engines * costs.rank_engine
    own = rate * assumptions.hit * (costs.hit_local + costs.hit_redis) / 2 + generated * stream
    shared = shared_work(assumptions, costs)
    if shared >= TARGET_CPU:
        raise ValueError(f"each router process would spend {shared:.0%} of its time on what the others store")
    processes = max(1, -int(-own // (TARGET_CPU - shared)))
    redis = rate * assumptions.hit * costs.redis_lookup + generated * (
        costs.redis_lookup + costs.redis_claim + costs.redis_store + processes * costs.redis_invalidation
    )
    shards = max(1, -int(-redis // max(0.01, TARGET_CPU - processes * costs.redis_idle)))
    slots = max(1, -(-int(FULL_RUNNING) // processes))
    return Size(processes, engines, shards, assumptions.speed, max_in_flight=slots, max_num_seqs=256)


def answer(
    assumptions: Assumptions, size: Size, costs: Costs, *, reduction: int, seconds: float, seed: int = 1
) -> Answer:
    """Simulates the deployment for `seconds`, after as long again to warm up (a third of a user's cycle at least)."""
    random, loop = Random(seed), EventLoop()
    repeatable = repeatable_share(assumptions, size.processes)
    cache = _cache(assumptions, random, size.processes, repeatable)
    system = System(loop, random, size, costs, cache, reduction=reduction)
    workload = Workload(assumptions.popularity, repeatable, exponential_tokens(assumptions.tokens, 4000))
    Traffic(loop, random, system, workload).users(
        assumptions.users // reduction, assumptions.sessions, response=assumptions.response
    )
    loop.run(seconds)
    system.reset()
    loop.run(2 * seconds)
    summary, load = summarize(system.outcomes, seconds), system.load(seconds)
    return Answer(size, reduction, summary.requests / seconds * reduction, summary, load, first_to_saturate(load))


def first_to_saturate(load: Load) -> str:
    """What has the least room; see FULL_RUNNING."""
    rooms = {
        "router processes": load.process_max,
        "Redis": load.shard_max,
        "engines": load.engine_running_mean / FULL_RUNNING,
    }
    return max(rooms, key=rooms.__getitem__)


def _cache(assumptions: Assumptions, random: Random, processes: int, repeatable: float) -> StationaryCache:
    return StationaryCache(
        random,
        assumptions.popularity,
        rate=assumptions.rate * repeatable,
        processes=processes,
        ttl=assumptions.ttl,
        local_entries=int(assumptions.local / assumptions.entry),
    )
