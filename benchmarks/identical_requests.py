"""200 identical concurrent requests over two routers: the number of generations, and the CPU time of the routers.
Also the effect of a frozen Redis.

    .venv/bin/python -m benchmarks.identical_requests

Two `roundhouse serve` processes, one redis-server and one simulated engine whose first token takes 300 ms, all on this
machine. Times are those of a client, from sending the request to the end of the response; the clients share the machine
with all that they measure. For the frozen Redis, `cache.timeout` is its default of 50 ms, and the engine responds
without a delay.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from benchmarks.processes import cpu_seconds
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import LLAMA, chat_body, router_config
from tests.support.simulated_engine import SimulatedEngine

REQUESTS = 200


async def ask(http: httpx.AsyncClient, url: str, prompt: str, *, stream: bool = False) -> tuple[str, float]:
    """X-Cache, and the duration in seconds."""
    started = time.perf_counter()
    answer = await http.post(f"{url}/v1/chat/completions", json=chat_body(prompt, stream=stream))
    answer.raise_for_status()
    return answer.headers["x-cache"], time.perf_counter() - started


async def identical(http: httpx.AsyncClient, urls: list[str], engine: SimulatedEngine) -> dict[str, object]:
    await engine.set_faults({"fault": "ttft", "ms": 300})
    before = (await engine.stats())["started"]
    requests = [ask(http, urls[n % 2], "The sea?", stream=n % 3 == 0) for n in range(REQUESTS)]
    answers = await asyncio.gather(*requests)
    generations = (await engine.stats())["started"] - before
    await engine.clear_faults()
    return {"requests": REQUESTS, "generations": generations, **Counter(cache for cache, _ in answers)}


async def cost(http: httpx.AsyncClient, routers: list[RouterProcess], engine: SimulatedEngine, prompt: str) -> float:
    """CPU time of both routers, in milliseconds, for REQUESTS identical concurrent requests."""
    pids = [router.process.pid for router in routers]
    await engine.set_faults({"fault": "ttft", "ms": 300})
    before = sum(map(cpu_seconds, pids))
    await asyncio.gather(*[ask(http, routers[n % 2].url, prompt) for n in range(REQUESTS)])
    took = sum(map(cpu_seconds, pids)) - before
    await engine.clear_faults()
    return round(took * 1000, 1)


async def frozen(http: httpx.AsyncClient, url: str, redis: RedisServer) -> dict[str, object]:
    usual = sorted([(await ask(http, url, f"before {n}"))[1] for n in range(20)])
    redis.freeze()
    after = [(await ask(http, url, f"after {n}"))[1] for n in range(20)]
    redis.thaw()
    return {
        "usual_p50_ms": round(usual[10] * 1000, 1),
        "first_ms": round(after[0] * 1000, 1),
        "then_p50_ms": round(sorted(after[1:])[9] * 1000, 1),
        "then_max_ms": round(max(after[1:]) * 1000, 1),
    }


async def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    redis = RedisServer()
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedEngine(LLAMA) as engine, httpx.AsyncClient(trust_env=False, timeout=30) as http:
            await redis.start()
            text = router_config(redis.url, {"llama-chat": ("llama", "any", engine.url)}).replace('"2500ms"', '"50ms"')
            routers = [RouterProcess(Path(folder), text, name=f"router-{n}") for n in range(2)]
            try:
                for router in routers:
                    router.start()
                for router in routers:
                    await router.wait_until_ready()
                urls = [router.url for router in routers]
                print(json.dumps({"identical": await identical(http, urls, engine)}))
                for prompt in ("Warm?", "The moon?", "The sun?"):
                    costs = [await cost(http, routers, engine, prompt) for _ in range(3)]
                    print(json.dumps({"cpu_ms": {"identical at once": costs[0], "as many hits": min(costs[1:])}}))
                print(json.dumps({"frozen_redis": await frozen(http, urls[0], redis)}))
            finally:
                for router in routers:
                    router.kill()
                redis.remove()


asyncio.run(main())
