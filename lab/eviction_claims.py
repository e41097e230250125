"""Whether a full Redis evicts what routers coordinate with: claims that expire soon, beside entries that expire late.

    .venv/bin/python -m lab.eviction_claims

For each policy, a redis-server gets 6,000 entries of 3 kB in 24 seconds or more, where 4 MB are free. Meanwhile, a key
is set 44 times with an expiry of 10 seconds, as the claim of a generation in flight has one, and read 50 entries later.
"""

import argparse
import asyncio
import time
from typing import Any, Final

import redis

from tests.support.redis_process import RedisServer

POLICIES: Final = ("allkeys-lru", "allkeys-lfu", "volatile-lru", "volatile-lfu", "volatile-ttl")
ENTRIES: Final = 6000
WARM: Final = 1600  # entries before the first claim, so that the memory is full
CLAIM: Final = "rh:1:claim"


async def evicted_claims(policy: str) -> tuple[int, int]:
    """How many claims were set, and how many of these were evicted."""
    server = RedisServer("--maxmemory-policy", policy)
    try:
        await server.start()
        with redis.Redis.from_url(server.url) as client:
            return await asyncio.to_thread(_count, client)
    finally:
        server.remove()


def _count(client: Any) -> tuple[int, int]:
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 4_000_000)
    claims = evicted = 0
    for number in range(ENTRIES):
        client.set(f"rh:1:entry:{number}", b"x" * 3000, ex=90_000)
        time.sleep(0.004)  # LRU's clock has a resolution of a second
        if number >= WARM and number % 100 == 0:
            client.set(CLAIM, b"process", px=10_000)
            claims += 1
        elif number >= WARM and number % 100 == 50:
            evicted += client.get(CLAIM) is None
    return claims, evicted


async def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = await asyncio.gather(*map(evicted_claims, POLICIES))
    for policy, (claims, evicted) in zip(POLICIES, results, strict=True):
        print(f"{policy:14}{evicted:3} of {claims} claims evicted")


if __name__ == "__main__":
    asyncio.run(main())
