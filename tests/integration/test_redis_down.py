"""Redis refuses, hangs, dies or is full: requests continue at a bounded cost, and the cache recovers."""

import time
from typing import Any

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.sse_answers import chat_text
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def own_config(own_redis: RedisServer, engines: EngineSet) -> str:
    """The default configuration with its own Redis, and a timeout of 100 ms."""
    return router_config(own_redis.url, engines.as_config()).replace('"2500ms"', '"100ms"')


async def bypassed(router: RouterServer, prompt: str = "The sea?", **fields: Any) -> float:
    """Sends a request that bypasses the cache; returns the seconds that it took."""
    started = time.perf_counter()
    answer = await router.chat(prompt, **fields)
    took = time.perf_counter() - started
    assert answer.status_code == 200
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "redis-down")
    assert answer.headers["cache-status"] == "roundhouse; fwd=bypass; detail=redis-down"
    assert "x-cache-key" not in answer.headers
    assert chat_text(answer)
    return took


async def cache_status(router: RouterServer, prompt: str = "The sea?") -> str:
    answer = await router.chat(prompt)
    assert answer.status_code == 200
    return str(answer.headers["x-cache"])


async def is_served_from_the_cache(router: RouterServer) -> bool:
    return await cache_status(router) == "HIT"


async def test_a_router_starts_and_serves_without_redis_and_connects_later(
    make_router: MakeRouter, own_redis: RedisServer, own_config: str
) -> None:
    router = await make_router(own_config)
    for stream in (False, True):
        await bypassed(router, stream=stream)
    assert (await router.http.get("/healthz")).json()["redis"] == "down"
    assert (await router.metrics())["roundhouse_redis_up"] == 0
    await own_redis.start()
    await eventually(lambda: is_served_from_the_cache(router))
    assert (await router.http.get("/healthz")).json()["redis"] == "up"
    assert (await router.metrics())["roundhouse_redis_up"] == 1


async def test_a_frozen_redis_delays_one_request_by_its_timeout_and_the_others_not_at_all(
    make_router: MakeRouter, own_redis: RedisServer, own_config: str
) -> None:
    await own_redis.start()
    router = await make_router(own_config)
    assert await cache_status(router) == "MISS"
    assert await cache_status(router) == "HIT"
    own_redis.freeze()
    assert 0.09 < await bypassed(router, "The land?") < 3
    took = [await bypassed(router, f"The sea {n}?") for n in range(10)]
    assert min(took) < 0.09
    own_redis.thaw()
    await eventually(lambda: is_served_from_the_cache(router))


async def test_redis_can_be_killed_and_restarted_while_requests_continue(
    make_router: MakeRouter, own_redis: RedisServer, own_config: str
) -> None:
    await own_redis.start()
    router = await make_router(own_config)
    assert await cache_status(router) == "MISS"
    own_redis.kill()
    await bypassed(router)
    await own_redis.start()
    seen = []

    async def hit() -> bool:
        seen.append(await cache_status(router))
        return seen[-1] == "HIT"

    await eventually(hit)
    assert seen[0] != "HIT", "it restarted empty"


async def test_redis_can_die_during_a_stream(
    make_router: MakeRouter, own_redis: RedisServer, own_config: str, engines: EngineSet
) -> None:
    await own_redis.start()
    router = await make_router(own_config)
    await engines.chat.set_faults({"fault": "tps", "rate": 200})
    body = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}], "stream": True}
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["x-cache"] == "MISS"
        own_redis.kill()
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
    lost = [f'llm_cache_writes_total{{result="{result}"}}' for result in ("failed", "dropped")]

    async def counted() -> float:
        metrics = await router.metrics()
        return sum(metrics.get(name, 0) for name in lost)

    assert await eventually(counted) == 1


async def test_a_full_redis_serves_its_entries_and_fails_no_request(
    make_router: MakeRouter, own_redis: RedisServer, own_config: str
) -> None:
    await own_redis.start()
    router = await make_router(own_config)
    assert await cache_status(router, "kept") == "MISS"
    assert await cache_status(router, "kept") == "HIT"
    await own_redis.command("CONFIG", "SET", "maxmemory", "1")
    for _ in range(3):
        assert await cache_status(router, "new") == "MISS"
        assert await cache_status(router, "kept") == "HIT"

    async def failed() -> bool:
        return (await router.metrics()).get('llm_cache_writes_total{result="failed"}') == 3

    await eventually(failed)


async def test_the_log_contains_no_password_of_redis(
    make_router: MakeRouter, own_redis: RedisServer, own_config: str, caplog: pytest.LogCaptureFixture
) -> None:
    await own_redis.start()
    await own_redis.command("CONFIG", "SET", "requirepass", "the-right-one")
    url = f"unix://:top-secret@{own_redis.socket}"
    router = await make_router(own_config.replace(own_redis.url, url))
    await bypassed(router)
    assert "Redis is down" in caplog.text
    assert "top-secret" not in caplog.text
    pages = [(await router.http.get(page)).text for page in ("/metrics", "/healthz")]
    assert "top-secret" not in "".join(pages)
