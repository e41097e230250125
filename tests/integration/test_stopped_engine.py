"""A real engine process that stops (SIGSTOP), at default settings. tests/simulation/silence.py has the other cases."""

import asyncio
import time

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import chat_text

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
