"""The queue before an engine with a concurrency limit, over sockets; tests/world has its rules."""

import asyncio

import pytest

from tests.support.on_demand import QUEUED
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, router_config
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_json_and_streams_wait_in_the_same_queue(redis_server: RedisServer, make_router: MakeRouter) -> None:
    async with SimulatedEngine(LLAMA, tokens_per_second=400) as engine:
        text = router_config(redis_server.url, {"one": ("llama", "any", engine.url)})
        router = await make_router(text.replace("served_model", "max_in_flight = 3\nserved_model"))
        answers = await asyncio.gather(*(router.chat(f"{n}?", stream=n % 2 == 0) for n in range(12)))
        assert [answer.status_code for answer in answers] == [200] * 12
        assert (await engine.metrics())['vllm:num_requests_running{engine="0",model_name="' + LLAMA + '"}'] == 0
        assert (await router.metrics())[QUEUED] == 0
