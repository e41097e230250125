"""Streams whose engine fails after the first token, and that another engine continues."""

from typing import Any
from unittest.mock import patch

import httpx
import pytest

from router.core.routing.prefill import EnginePrefill, SentPrompt
from tests.support.fault_timeouts import timeouts_for
from tests.support.router_server import router_config
from tests.support.sse_answers import chat_delta_text, parse_events
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, toy_engines
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = "The sea is wide, and the möwe 🙂 flies over it."
CASES = [("close", "chat"), ("stall", "completions"), ("error", "completions"), ("abort", "chat")]
"""tests/integration has a connection that is reset, which the simulated network has not."""


def model() -> ToyModel:
    return ToyModel(ANSWER, [3, 1, 2])


async def ask(router: WorldRouter, endpoint: str, **fields: Any) -> httpx.Response:
    body: dict[str, Any] = {"model": "llama", "stream": True, "temperature": 0, **fields}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": "x"}]
        return await router.post("/v1/chat/completions", body)
    body.setdefault("max_tokens", 100)
    return await router.post("/v1/completions", body | {"prompt": "x"})


def text_of(answer: httpx.Response) -> str:
    return chat_delta_text([event for event in parse_events(answer.content) if event["choices"]])


async def is_idle(router: WorldRouter) -> bool:
    page = (await router.http.get("/healthz")).json()
    return not any(engine["in_flight"] for engine in page["engines"].values())


@pytest.mark.parametrize(("how", "endpoint"), CASES)
@scenario
async def test_another_engine_goes_on(world: World, how: str, endpoint: str) -> None:
    first, second = ToyScript(model(), Break(1500, how), name="a"), ToyScript(model(), Break(1500, how), name="b")
    third, whole = ToyScript(model(), name="c"), ToyScript(model(), name="a")
    async with toy_engines(first, second, third) as engines, toy_engines(whole) as alone:
        router = await world.router(router_config(world.redis.url, engines, rest=timeouts_for({"fault": how})))
        other = await world.router(router_config(world.redis.url, alone))
        options = {"stream_options": {"include_usage": True}}
        answer = await ask(router, endpoint, **options)
        expected = await ask(other, endpoint, **options, user="other")
        assert text_of(answer) == text_of(expected) == ANSWER
        ids = {event["id"] for event in parse_events(answer.content)}
        assert len(ids) == 1
        assert parse_events(answer.content)[-1]["usage"] == parse_events(expected.content)[-1]["usage"]
        assert answer.content.count(b"[DONE]") == answer.content.count(b'"finish_reason":"stop"') == 1
        await eventually(lambda: is_idle(router))


@scenario
async def test_the_engine_that_goes_on_has_computed_the_prompt_with_its_first_token(world: World) -> None:
    first, second = (ToyScript(model(), Break(1500, "close"), name=name) for name in ("a", "b"))
    computed = []
    original = EnginePrefill.on_first_token

    def on_first_token(prefill: EnginePrefill, sent: SentPrompt, now: float) -> None:
        computed.append(prefill)
        original(prefill, sent, now)

    async with toy_engines(first, second) as engines:
        router = await world.router(router_config(world.redis.url, engines))
        with patch.object(EnginePrefill, "on_first_token", on_first_token):
            await ask(router, "chat")
    assert len(set(map(id, computed))) == 2


@scenario
async def test_an_event_without_its_empty_line_is_neither_lost_nor_repeated(world: World) -> None:
    """At the end of a response it counts, and the response may still not be complete."""
    first, second = (ToyScript(ToyModel(ANSWER, [1]), name=name, kind="someone") for name in ("a", "b"))
    first.breaks.append(Break(2500, "unended"))
    async with toy_engines(first, second) as engines:
        router = await world.router(router_config(world.redis.url, engines))
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        answer = await ask(router, "completions", **options)
    assert len(second.bodies) == 1
    assert text_of(answer) == ANSWER
