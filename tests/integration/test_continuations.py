"""A stream whose connection to the engine is reset. tests/world/test_continuations.py has the other faults."""

from typing import Any

import httpx
import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, router_config
from tests.support.sse_answers import chat_delta_text, parse_events
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, toy_engines
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = "The sea is wide, and the möwe 🙂 flies over it."


def model() -> ToyModel:
    return ToyModel(ANSWER, [3, 1, 2])


async def ask(router: RouterServer, **fields: Any) -> httpx.Response:
    return await router.chat("x", stream=True, temperature=0, **fields)


def text_of(answer: httpx.Response) -> str:
    return chat_delta_text([event for event in parse_events(answer.content) if event["choices"]])


async def is_idle(router: RouterServer) -> bool:
    page = (await router.http.get("/healthz")).json()
    return not any(engine["in_flight"] for engine in page["engines"].values())


async def test_another_engine_goes_on(redis_server: RedisServer, make_router: MakeRouter) -> None:
    first, second = ToyScript(model(), Break(1500), name="a"), ToyScript(model(), Break(1500), name="b")
    third, whole = ToyScript(model(), name="c"), ToyScript(model(), name="a")
    async with toy_engines(first, second, third) as engines, toy_engines(whole) as alone:
        router = await make_router(router_config(redis_server.url, engines))
        other = await make_router(router_config(redis_server.url, alone))
        options = {"stream_options": {"include_usage": True}}
        answer = await ask(router, **options)
        expected = await ask(other, **options, user="other")
        assert text_of(answer) == text_of(expected) == ANSWER
        ids = {event["id"] for event in parse_events(answer.content)}
        assert len(ids) == 1
        assert parse_events(answer.content)[-1]["usage"] == parse_events(expected.content)[-1]["usage"]
        assert answer.content.count(b"[DONE]") == answer.content.count(b'"finish_reason":"stop"') == 1
        await eventually(lambda: is_idle(router))
