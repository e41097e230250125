"""A Redis whose large replies take long is not down: `cache.timeout` bounds its silence."""

import asyncio
import json
from contextlib import aclosing
from typing import Any, Final

import pytest

from router.net.redis.deadline import MAX_EXTRA_TIME
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.connection.redis import open_backend, open_pipeline
from tests.support.router_server import router_config
from tests.support.tcp_proxy import ReplyRate, TcpProxy
from tests.world.scenario import World, scenario

LARGE: Final = 900 << 10  # bytes of text in a response, almost as large as may be stored
RATE: Final = 45e6  # bytes per second
DEFAULT_TIMEOUT: Final = 0.05  # seconds that Redis may be silent
TIMEOUT: Final = 1.0  # the same, for a pipeline without a router
COMPLETION: Final[dict[str, Any]] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * LARGE}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


def pipeline_to(proxy: TcpProxy) -> aclosing[RedisPipeline]:
    """Once Redis is down, it does not ask whether it is up."""
    return aclosing(open_pipeline(open_backend(proxy.url, timeout=TIMEOUT), timeout=TIMEOUT, retry=3600))


@scenario
async def test_eight_large_concurrent_lookups_over_a_slow_network_are_hits(world: World) -> None:
    prompts = [f"Number {number}?" for number in range(8)]
    engine = await world.scripted_engine(json.dumps(COMPLETION).encode(), content_type="application/json")
    engines = {"one": ("llama", "any", engine.url)}
    writer = await world.router(router_config(world.redis.url, engines))
    for prompt in prompts:
        assert (await writer.chat(prompt)).headers["x-cache"] == "MISS"
    await asyncio.sleep(1)
    proxy = await world.proxy()
    proxy.reply_rate = ReplyRate(RATE)
    text = router_config(proxy.url, engines, cache="local = 0").replace('"2500ms"', '"50ms"')
    reader = await world.router(text)
    started = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*map(reader.chat, prompts))
    took = asyncio.get_running_loop().time() - started
    assert [answer.headers["x-cache"] for answer in answers] == ["HIT"] * 8
    assert took > 8 * LARGE / RATE > 3 * DEFAULT_TIMEOUT


@scenario
async def test_a_redis_that_replies_one_byte_at_a_time_is_down_after_a_second(world: World) -> None:
    clock = asyncio.get_running_loop().time
    proxy = await world.proxy()
    async with pipeline_to(proxy) as pipeline:
        await pipeline.start()
        await world.redis.client.set("k", "x" * 1000)
        proxy.reply_rate = ReplyRate(50, piece_size=1)  # which takes twenty seconds
        started = clock()
        with pytest.raises(RedisDownError):
            await pipeline.execute(("GET", "k"))
        assert clock() - started == pytest.approx(TIMEOUT + MAX_EXTRA_TIME, abs=0.01)
        with pytest.raises(RedisDownError):
            pipeline.execute(("GET", "k"))


@scenario
async def test_a_redis_that_stops_within_a_reply_is_down_after_the_timeout(world: World) -> None:
    clock = asyncio.get_running_loop().time
    proxy = await world.proxy()
    async with pipeline_to(proxy) as pipeline:
        await pipeline.start()
        await world.redis.client.set("k", "x" * 200_000)
        proxy.reply_rate = ReplyRate(RATE, piece_size=1000, stall_after=100_000)
        started = clock()
        with pytest.raises(RedisDownError):
            await pipeline.execute(("GET", "k"))
        assert TIMEOUT < clock() - started < TIMEOUT + 0.1
