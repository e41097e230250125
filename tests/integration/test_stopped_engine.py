"""A real engine process that stops (SIGSTOP), at default settings. tests/simulation/silence.py has the other cases."""

import asyncio
import time
from typing import Any

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import chat_text
from tests.support.time_travel import DAY, backdate_entry
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_requests_leave_an_engine_that_stops_within_seconds(
    make_router: MakeRouter, redis_server: RedisServer
) -> None:
    async with SimulatedEngine(LLAMA) as stopped, SimulatedEngine(LLAMA) as other:
        config = router_config(
            redis_server.url, {"a": ("llama", "chat", stopped.url), "b": ("llama", "code", other.url)}
        )
        router = await make_router(config)
        await stopped.set_faults(
            {"fault": "stall", "after": 0, "match": "no token"}, {"fault": "stall", "after": 3, "match": "three"}
        )
        requests = [
            asyncio.ensure_future(router.chat("Tell me about the sea, with no token.", stream=True)),
            asyncio.ensure_future(router.chat("Tell me about the sun, with no token.", max_tokens=50)),
            asyncio.ensure_future(router.chat("Tell me about the sky, with no token.")),
            asyncio.ensure_future(router.chat("Tell me about the moon, with three tokens.", stream=True)),
        ]
        await stopped.stats(in_flight=4)
        stopped.freeze()
        try:
            started = time.monotonic()
            answers = await asyncio.gather(*requests)
            assert time.monotonic() - started < 20  # `first_token` is 30 s
        finally:
            stopped.thaw()
        assert [(answer.status_code, bool(chat_text(answer))) for answer in answers] == [(200, True)] * 4
        metrics = await router.metrics()
        assert metrics['llm_retries_total{engine="a",reason="lost"}'] == 4


async def test_a_stale_entry_is_served_at_once_while_the_only_engine_is_stopped(
    make_router: MakeRouter, redis_server: RedisServer, redis: Any
) -> None:
    async with SimulatedEngine(LLAMA) as stopped:
        router = await make_router(router_config(redis_server.url, {"a": ("llama", "any", stopped.url)}))
        first = await router.chat("The sea?")
        await backdate_entry(redis, first.headers["x-cache-key"], DAY + 10)

        async def is_down() -> bool:
            return (await router.http.get("/healthz")).json()["engines"]["a"]["up"] is False

        stopped.freeze()
        try:
            await eventually(is_down)
            started = time.monotonic()
            answers = [await router.chat("The sea?", stream=stream) for stream in (False, True)]
            assert time.monotonic() - started < 20  # two attempts take `first_token` each, which is 30 s
        finally:
            stopped.thaw()
        assert [answer.headers["x-cache"] for answer in answers] == ["STALE", "STALE"]

        async def is_fresh() -> bool:
            return (await router.chat("The sea?")).headers["x-cache"] == "MISS"

        await eventually(is_fresh)
