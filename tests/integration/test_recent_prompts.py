"""Routers keep a sample of the requests whose responses they store, for the warm-up of new engines."""

import asyncio
from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY, prompts_key
from router.shared.engines.launcher import LauncherRedis
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import eventually

ANSWER = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Sea"},"finish_reason":null}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def prompts_in(redis: Any, model: str = "llama") -> list[dict[str, str]]:
    """The requests that Redis has."""
    keys = await redis.keys(prompts_key(model) + ":*")
    return [await redis.hgetall(key) for key in keys]


async def test_a_stored_response_adds_its_request_as_the_engine_got_it(
    router: RouterServer, redis: Any, redis_server: RedisServer
) -> None:
    await router.chat("The sea?", stream=True)
    (prompt,) = await eventually(lambda: prompts_in(redis))
    assert prompt["path"] == "/v1/chat/completions"
    assert f'"{LLAMA}"' in prompt["body"]
    assert "The sea?" in prompt["body"]
    async with LauncherRedis(redis_server.url) as launcher:
        (known,) = await launcher.recent_prompts("llama", 10)
    assert bytes(known.body).decode() == prompt["body"]


@pytest.mark.parametrize("header", ["no-store", "no-cache, no-store"])
async def test_a_response_that_must_not_be_stored_leaves_no_trace(
    router: RouterServer, redis: Any, header: str
) -> None:
    answer = await router.chat("A secret?", headers={"cache-control": header})
    assert answer.status_code == 200
    stored = await router.chat("The sea?")  # Redis executes the commands in their order
    await eventually(lambda: redis.exists(stored.headers["x-cache-key"]))
    (prompt,) = await eventually(lambda: prompts_in(redis))
    assert "secret" not in prompt["body"]


async def test_an_incomplete_response_leaves_no_trace(router: RouterServer, engines: EngineSet, redis: Any) -> None:
    for engine in engines:
        await engine.set_faults({"fault": "error", "after": 3})
    assert "engine_failed" in (await router.chat("Broken off?", stream=True)).text
    for engine in engines:
        await engine.clear_faults()
    await router.chat("The sea?")
    (prompt,) = await eventually(lambda: prompts_in(redis))
    assert "The sea?" in prompt["body"]


async def test_it_can_be_turned_off(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), cache="recent_prompts = 0"))
    stored = await router.chat("The sea?")
    await eventually(lambda: redis.exists(stored.headers["x-cache-key"]))
    await router.chat("The sea?", headers={"cache-control": "no-cache"})
    assert await redis.keys(prompts_key("llama") + "*") == []


async def test_a_request_expires_with_its_response(router: RouterServer, redis: Any) -> None:
    await router.chat("The sea?", headers={"x-cache-ttl": "7"})
    (key,) = await eventually(lambda: redis.keys(prompts_key("llama") + ":*"))
    assert 0 < await redis.pttl(key) <= 7000


async def test_a_request_is_written_before_its_response_so_that_a_purge_of_the_response_finds_it(
    router: RouterServer, redis: Any
) -> None:
    async with redis.monitor() as monitor:
        key = (await router.chat("The sea?")).headers["x-cache-key"]
        writes: list[str] = []
        async for seen in monitor.listen():
            if seen["command"].startswith("HSET"):  # within a script
                writes.append(seen["command"].split()[1])
            if key in writes:
                break
    assert [name.rpartition(":")[0] for name in writes if "prompts" in name] == ["rh:1:prompts:llama"]


async def test_a_request_whose_response_was_purged_meanwhile_is_not_kept(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    router = await make_router(router_config(redis_server.url, {"one": ("llama", "any", engine.url)}))
    body = {
        "model": "llama",
        "messages": [{"role": "user", "content": "<context>handbook</context>What?"}],
        "stream": True,
    }
    generating = asyncio.ensure_future(router.post("/v1/chat/completions", body))
    await eventually(lambda: redis.keys("rh:1:claim:*"))
    await redis.xadd(PURGE_LOG_KEY, {"scope": EntryFilter(document="handbook").to_json()})
    engine.chunk_permits.release()
    assert (await generating).status_code == 200

    async def is_counted() -> bool:
        return any('result="purged"' in name for name in await router.metrics())

    async def is_gone() -> bool:
        return not await prompts_in(redis)

    await eventually(is_counted)
    await eventually(is_gone)
    await engine.stop()
