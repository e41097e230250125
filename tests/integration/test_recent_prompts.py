"""Routers keep a sample of the requests whose responses they store, for the warm-up of new engines."""

from typing import Any

import pytest

from router.core.cache.redis_keys import prompts_key
from router.shared.recent_prompts import decode_prompts
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stored_response_adds_its_request_as_the_engine_got_it(router: RouterServer, redis: Any) -> None:
    await router.chat("The sea?", stream=True)
    values = await eventually(lambda: redis.lrange(prompts_key("llama"), 0, -1))
    (prompt,) = decode_prompts([value.encode() for value in values])
    assert prompt.path == "/v1/chat/completions"
    assert f'"{LLAMA}"'.encode() in bytes(prompt.body)
    assert b"The sea?" in bytes(prompt.body)
    assert await redis.ttl(prompts_key("llama")) > 0


@pytest.mark.parametrize("header", ["no-store", "no-cache, no-store"])
async def test_a_response_that_must_not_be_stored_leaves_no_trace(
    router: RouterServer, redis: Any, header: str
) -> None:
    answer = await router.chat("A secret?", headers={"cache-control": header})
    assert answer.status_code == 200
    stored = await router.chat("The sea?")  # Redis executes the commands in their order
    await eventually(lambda: redis.exists(stored.headers["x-cache-key"]))
    values = await eventually(lambda: redis.lrange(prompts_key("llama"), 0, -1))
    assert len(values) == 1
    assert "secret" not in values[0]


async def test_an_incomplete_response_leaves_no_trace(router: RouterServer, engines: EngineSet, redis: Any) -> None:
    for engine in engines:
        await engine.set_faults({"fault": "error", "after": 3})
    assert "engine_failed" in (await router.chat("Broken off?", stream=True)).text
    for engine in engines:
        await engine.clear_faults()
    await router.chat("The sea?")
    values = await eventually(lambda: redis.lrange(prompts_key("llama"), 0, -1))
    assert len(values) == 1
    assert "The sea?" in values[0]


async def test_it_can_be_turned_off(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), cache="recent_prompts = 0"))
    stored = await router.chat("The sea?")
    await eventually(lambda: redis.exists(stored.headers["x-cache-key"]))
    await router.chat("The sea?", headers={"cache-control": "no-cache"})
    assert await redis.exists(prompts_key("llama")) == 0
