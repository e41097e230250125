"""The model of a full Redis (redis_memory.py) beside a real redis-server, without TTLs; see lab/eviction.py.

The requests of a trace are sent one after the other, spread over 20 seconds, since LRU's clock has a resolution of one.
All entries have the same size, so the server's limit is a number of entries, which is read from the server at the end.
The model gets the same requests at the instants at which the server got them. LFU's decay takes minutes of real time
and is not part of the comparison.
"""

import asyncio
import time
from random import Random
from typing import Any, Final, NamedTuple

import redis

from lab.eviction_traces import Mix, make_trace
from lab.redis_memory import RedisMemory
from tests.support.redis_process import RedisServer

REQUESTS: Final = 20_000
SECONDS: Final = 20.0
VALUE: Final = b"x" * 2000
ROOM: Final = 3 << 20  # bytes beside what an empty server uses


class Validation(NamedTuple):
    """Hit ratios; `error`: that of the model minus the server's."""

    policy: str
    seed: int
    entries: int
    server: float
    model: float
    error: float


def validate(seeds: list[int]) -> list[Validation]:
    return [asyncio.run(_compare(policy, seed)) for policy in ("lru", "lfu") for seed in seeds]


async def _compare(policy: str, seed: int) -> Validation:
    keys = [key for _, key in make_trace(Mix(), seed, REQUESTS).requests][:REQUESTS]
    server = RedisServer("--maxmemory-policy", f"allkeys-{policy}")
    try:
        await server.start()
        with redis.Redis.from_url(server.url) as client:
            instants, hits, entries = _replay(client, keys)
    finally:
        server.remove()
    model = _model_hits(keys, instants, entries, policy, seed)
    ratio, modelled = hits / len(keys), model / len(keys)
    return Validation(policy, seed, entries, round(ratio, 4), round(modelled, 4), round(modelled - ratio, 4))


def _replay(client: Any, keys: list[int]) -> tuple[list[float], int, int]:
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used + ROOM)
    instants, hits, start = [], 0, time.time()
    for number, key in enumerate(keys):
        ahead = start + number * SECONDS / len(keys) - time.time()
        if ahead > 0.01:
            time.sleep(ahead)
        instants.append(time.time())
        if client.get(key) is not None:
            hits += 1
        else:
            client.set(key, VALUE)
    return instants, hits, client.dbsize()


def _model_hits(keys: list[int], instants: list[float], entries: int, policy: str, seed: int) -> int:
    memory = RedisMemory(entries - 1, policy, Random(seed))  # it evicts before a write, as Redis does
    hits = 0
    for key, now in zip(keys, instants, strict=True):
        entry = memory.get(key, now)
        if entry is not None:
            hits += 1
            memory.touch(entry, now)
        else:
            memory.put(key, 1, now, 1e9)
    return hits
