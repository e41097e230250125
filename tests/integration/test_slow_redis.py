"""A Redis whose large replies take long is not down: `cache.timeout` bounds its silence."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.net.redis.deadline import MAX_EXTRA_TIME
from router.net.redis.pipeline import RedisDownError
from router.shared.connection.redis import open_backend, open_pipeline
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tcp_proxy import ReplyRate, TcpProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LARGE = 900 << 10  # bytes of text in a response
RATE = 45e6  # bytes per second
DEFAULT_TIMEOUT = '"50ms"'
TIMEOUT = 1.0
"""Seconds. A Redis on a busy machine may be silent for longer than by default."""
COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * LARGE}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[ScriptedEngine]:
    """An engine whose responses are almost as large as may be stored."""
    engine = ScriptedEngine(json.dumps(COMPLETION).encode(), content_type="application/json")
    await engine.start()
    yield engine
    await engine.stop()


async def test_eight_large_concurrent_lookups_over_a_slow_network_are_hits(
    make_router: MakeRouter, redis_server: RedisServer, redis: Any, engine: ScriptedEngine
) -> None:
    prompts = [f"Number {number}?" for number in range(8)]
    engines = {"one": ("llama", "any", engine.url)}
    writer = await make_router(router_config(redis_server.url, engines))
    for prompt in prompts:
        assert (await writer.chat(prompt)).headers["x-cache"] == "MISS"

    async def all_are_stored() -> bool:
        return len(await redis.keys("rh:1:default:*")) == len(prompts)

    await eventually(all_are_stored)
    async with TcpProxy(redis_server.socket) as proxy:
        proxy.reply_rate = ReplyRate(RATE)
        text = router_config(proxy.url, engines, cache="local = 0").replace('"2500ms"', DEFAULT_TIMEOUT)
        async with RouterServer(text) as reader:

            async def all_are_hits() -> bool:
                answers = await asyncio.gather(*map(reader.chat, prompts))
                return all(answer.headers["x-cache"] == "HIT" for answer in answers)

            # Not always at once: a busy machine can be silent for the 50 ms too.
            await eventually(all_are_hits)


async def test_a_redis_that_replies_one_byte_at_a_time_is_down_after_a_second(own_redis: RedisServer) -> None:
    await own_redis.start()
    clock = asyncio.get_running_loop().time
    async with TcpProxy(own_redis.socket) as proxy:
        line = open_pipeline(open_backend(proxy.url, timeout=TIMEOUT), timeout=TIMEOUT, retry=60)
        await line.start()
        await own_redis.command("SET", "k", "x" * 1000)
        proxy.reply_rate = ReplyRate(50, piece_size=1)  # which takes twenty seconds
        started = clock()
        with pytest.raises(RedisDownError):
            await line.execute(("GET", "k"))
        assert TIMEOUT + MAX_EXTRA_TIME - 0.1 < clock() - started < 10
        with pytest.raises(RedisDownError):
            line.execute(("GET", "k"))
        await line.aclose()


async def test_a_redis_that_stops_within_a_reply_is_down_after_the_timeout(own_redis: RedisServer) -> None:
    await own_redis.start()
    clock = asyncio.get_running_loop().time
    async with TcpProxy(own_redis.socket) as proxy:
        proxy.reply_rate = ReplyRate(RATE, piece_size=1000, stall_after=100_000)
        line = open_pipeline(open_backend(proxy.url, timeout=TIMEOUT), timeout=TIMEOUT, retry=60)
        await line.start()
        await own_redis.command("SET", "k", "x" * 200_000)
        started = clock()
        with pytest.raises(RedisDownError):
            await line.execute(("GET", "k"))
        # That it is less than MAX_EXTRA_TIME is tested at the connection, with a longer one.
        assert TIMEOUT - 0.05 < clock() - started < 10
        await line.aclose()
