"""Which entries to keep in a Redis that is full: policies compared by the seconds of generation that hits save.

    .venv/bin/python -m lab.eviction [--json]              # all mixes, four seeds: about 15 minutes
    .venv/bin/python -m lab.eviction --mixes mixed --seeds 1 2 --requests 20000
    .venv/bin/python -m lab.eviction --validate            # the model beside a real redis-server

Traces (eviction_traces.py) run in virtual time through a model of Redis (redis_memory.py) and the router's own decision
(router/core/cache/retention.py), with the default `cache.ttl` and `stale_if_error`. Nothing is timed.

`seconds` is the share of all seconds of generation that hits saved, `hits` the share of requests that were hits, each
the mean over the seeds; `gain` is the mean of the relative differences in seconds saved to allkeys-lru with the same
trace, and `least` and `most` the smallest and the largest of them. `memory` is the limit, as a share of the most memory
that the trace takes without any. `bound`: no policy can save more. It knows the future: each interval between two
requests for a response within its TTL takes memory for its length, and the intervals with the most seconds per byte and
second are taken until the memory, over the complete trace, is used up (Berger, Beckmann and Harchol-Balter, "Practical
Bounds on Optimal Caching with Variable Object Sizes", 2018).

Columns: the eviction policy of Redis. `probation`: an entry that was not asked for again is deleted after a fixed time.
`worth`: `cache.retention = "worth"`. `local cache`: a tenth of the memory is the local cache of a router, whose hits
Redis does not see; `reported`: the router reports them, at most once a minute for each entry, as it does with `worth`.
"""

import argparse
import json
from collections import OrderedDict
from collections.abc import Callable
from random import Random
from statistics import mean
from typing import Final, NamedTuple

from benchmarks.options import count
from lab.eviction_bound import bound
from lab.eviction_traces import MIXES, Trace, make_trace
from lab.eviction_validation import validate
from lab.redis_memory import Entry, RedisMemory
from router.core.cache.retention import WorthAverage, probation_lifetime
from router.settings import CacheSettings

TTL: Final = CacheSettings().ttl
LIFETIME: Final = TTL + CacheSettings().stale_if_error
MEMORY: Final = (0.05, 0.10, 0.25, 0.50)
REFRESH: Final = 10.0  # seconds between two readings of the memory in use
REPORTS: Final = 60.0  # seconds between two reports of hits of one entry

Lifetime = Callable[[float, float, bool], float]
"""Seconds on probation, by the relative worth of the entry, the memory in use, and whether it was asked for before."""


class Policy(NamedTuple):
    """`eviction`: see RedisMemory. `lifetime`: None without probation.

    `local`: the size of a local cache as a share of Redis' memory; `reported`: whether Redis gets to know its hits.
    """

    name: str
    eviction: str
    lifetime: Lifetime | None = None
    lfu_decay: int = 1
    local: float = 0.0
    reported: bool = False


class Outcome(NamedTuple):
    seconds: float
    hits: float
    evicted: int


def fixed(seconds: float) -> Lifetime:
    return lambda relative, memory_use, asked_before: seconds


def by_worth(relative: float, memory_use: float, asked_before: bool) -> float:
    return probation_lifetime(LIFETIME, relative, memory_use, asked_before=asked_before)


POLICIES: Final = (
    Policy("allkeys-lru", "lru"),
    Policy("allkeys-lfu", "lfu"),
    Policy("allkeys-lfu, lfu-decay-time 60", "lfu", lfu_decay=60),
    Policy("lru, probation of 1h", "lru", fixed(3600)),
    Policy("lru, probation of 6h", "lru", fixed(6 * 3600)),
    Policy("lru, worth", "lru", by_worth),
    Policy("lfu, worth", "lfu", by_worth),
    Policy("lfu-decay-time 60, worth", "lfu", by_worth, lfu_decay=60),
    Policy("volatile-ttl, worth", "ttl", by_worth),
    Policy("lru, local cache", "lru", local=0.1),
    Policy("lru, local cache, reported", "lru", local=0.1, reported=True),
    Policy("lru, local cache, worth", "lru", by_worth, local=0.1, reported=True),
)


class LocalCache:
    """The least recently used copies leave first. A copy is valid as long as Redis has the entry."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._size = 0
        self._copies: OrderedDict[int, Entry] = OrderedDict()

    def get(self, entry: Entry) -> bool:
        """Whether there is a copy of this entry; afterwards, there is one."""
        copy = self._copies.pop(entry.key, None)
        self._size += entry.size - (copy.size if copy is not None else 0)
        self._copies[entry.key] = entry
        while self._size > self._limit:
            self._size -= self._copies.popitem(last=False)[1].size
        return copy is entry


def run(trace: Trace, limit: int, seed: int, policy: Policy) -> Outcome:
    memory = RedisMemory(limit, policy.eviction, Random(seed), policy.lfu_decay)
    local = LocalCache(policy.local * limit)
    average, lifetime, seen = WorthAverage(), policy.lifetime, set[int]()
    reported: dict[int, float] = {}
    total = saved = memory_use = 0.0
    hits, refreshed = 0, -REFRESH
    for now, key in trace.requests:
        response = trace.responses[key]
        total += response.seconds
        if now - refreshed >= REFRESH:
            memory_use, refreshed = memory.used / limit, now
        entry = memory.get(key, now)
        if entry is not None and now - entry.created <= TTL:
            hits += 1
            saved += response.seconds
            if not local.get(entry):
                memory.touch(entry, now)
            elif policy.reported and now - reported.get(key, -REPORTS) >= REPORTS:
                reported[key] = now
                memory.touch(entry, now)
            if lifetime is not None and entry.expires < entry.created + LIFETIME:
                memory.expire(entry, entry.created + LIFETIME)
        else:
            kept = LIFETIME
            if lifetime is not None:
                relative = average.relative(response.seconds / response.size)
                kept = min(LIFETIME, lifetime(relative, memory_use, key in seen))
            seen.add(key)
            entry = memory.put(key, response.size, now, kept)
            memory.touch(entry, now)  # by PEXPIRE, which the router's script sends after HSET
    return Outcome(saved / total, hits / len(trace.requests), memory.evicted)


def peak_memory(trace: Trace) -> int:
    """The most bytes that all entries of a trace take at a time if none is evicted."""
    memory = RedisMemory(1 << 60, "lru", Random(0))
    peak = 0
    for now, key in trace.requests:
        entry = memory.get(key, now)
        if entry is None or now - entry.created > TTL:
            memory.put(key, trace.responses[key].size, now, LIFETIME)
            peak = max(peak, memory.used)
    return peak


class Row(NamedTuple):
    """See the module. `gain`, `least` and `most` in relation to the first policy, None for itself."""

    mix: str
    memory: float
    policy: str
    seconds: float
    hits: float
    gain: float | None
    least: float | None
    most: float | None
    evicted: int


def compare(mix: str, seeds: list[int], requests: int, policies: tuple[Policy, ...] = POLICIES) -> list[Row]:
    traces = [make_trace(MIXES[mix], seed, requests) for seed in seeds]
    peaks = [peak_memory(trace) for trace in traces]
    rows = []
    for share in MEMORY:
        limits = [int(peak * share) for peak in peaks]
        first: list[Outcome] = []
        for policy in policies:
            outcomes = [run(*each, policy) for each in zip(traces, limits, seeds, strict=True)]
            rows.append(_row(mix, share, policy.name, outcomes, first))
            first = first or outcomes
        bounds = [bound_outcome(trace, limit) for trace, limit in zip(traces, limits, strict=True)]
        rows.append(_row(mix, share, "bound", bounds, first))
    return rows


def bound_outcome(trace: Trace, limit: int) -> Outcome:
    seconds, hits = bound(trace, limit, TTL)
    return Outcome(seconds, hits, 0)


def _row(mix: str, memory: float, name: str, outcomes: list[Outcome], first: list[Outcome]) -> Row:
    gains = [outcome.seconds / base.seconds - 1 for outcome, base in zip(outcomes, first, strict=False)]
    known = bool(gains)
    return Row(
        mix, memory, name, round(mean(outcome.seconds for outcome in outcomes), 4),
        round(mean(outcome.hits for outcome in outcomes), 4), round(mean(gains), 4) if known else None,
        round(min(gains), 4) if known else None, round(max(gains), 4) if known else None,
        round(mean(outcome.evicted for outcome in outcomes)),
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    lines = []
    for mix, memory in dict.fromkeys((row.mix, row.memory) for row in rows):
        lines.append(f"\n{mix}, memory for {memory:.0%}\n{'policy':34}seconds    hits    gain  (least to most)")
        for row in rows:
            if (row.mix, row.memory) == (mix, memory):
                gain = "" if row.gain is None else f"{row.gain:+8.1%}  ({row.least:+.1%} to {row.most:+.1%})"
                lines.append(f"{row.policy:34}{row.seconds:7.1%} {row.hits:7.1%}{gain}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--requests", type=count, default=60_000)
    parser.add_argument("--validate", action="store_true", help="compare the model with a real redis-server")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.validate:
        validations = validate(arguments.seeds)
        for validation in validations:
            print(json.dumps(validation._asdict()) if arguments.json else validation)
        return
    rows = [row for mix in arguments.mixes for row in compare(mix, arguments.seeds, arguments.requests)]
    print(json.dumps([row._asdict() for row in rows]) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
