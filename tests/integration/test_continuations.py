"""A stream whose connection to the engine is reset. tests/world/test_continuations.py has the other faults."""

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, router_config
from tests.support.sse_answers import DONE_FRAME, chat_delta_text, parse_events
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, toy_engines

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = "The sea is wide, and the möwe 🙂 flies over it."


async def test_another_engine_goes_on(redis_server: RedisServer, make_router: MakeRouter) -> None:
    model = ToyModel(ANSWER, [3, 1, 2])
    first, second = ToyScript(model, Break(1500, "reset"), name="a"), ToyScript(model, name="b")
    async with toy_engines(first, second) as engines:
        router = await make_router(router_config(redis_server.url, engines))
        answer = await router.chat("x", stream=True, temperature=0)
    assert chat_delta_text(parse_events(answer.content)) == ANSWER
    assert answer.content.endswith(DONE_FRAME)
    assert (len(first.bodies), len(second.bodies)) == (1, 1)
