"""An engine that stops by a signal while it streams. tests/world/test_failures.py has further faults."""

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import DONE_FRAME
from tests.support.streaming_client import open_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_another_engine_goes_on_with_the_stream_of_an_engine_that_is_stopped(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    async with SimulatedEngine(LLAMA) as dying_engine:
        table = {"first": ("llama", "chat", dying_engine.url), "second": ("llama", "any", engines.code.url)}
        router = await make_router(router_config(redis_server.url, table))
        await dying_engine.set_faults({"fault": "stall", "after": 3})
        async with open_stream(router, "The sea?") as answer:
            await answer.read_until_text(" ")
            await dying_engine.stop()
            assert (await answer.read_to_end()).endswith(DONE_FRAME)
