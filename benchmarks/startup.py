"""The time until a router is ready, and the memory of its process then.

    .venv/bin/python -m benchmarks.startup [--times 5]

From the start of `python -m router serve` until /readyz returns 200, with a running Redis and engine. The result is the
fastest of several starts, which other programs disturbed least.
"""

import argparse
import asyncio
import json
import time

from benchmarks.processes import memory_kb, running_routers


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    seconds, memory = [], []
    async with running_routers() as (router,):
        for _ in range(arguments.times):
            router.kill()
            started = time.perf_counter()
            router.start()
            await router.wait_until_ready()
            seconds.append(time.perf_counter() - started)
            memory.append(memory_kb(router.process.pid))
    print(json.dumps({"ready_seconds": round(min(seconds), 2), "memory_mb": round(min(memory) / 1024, 1)}))


asyncio.run(main())
