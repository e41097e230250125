"""Streams of agents, with reasoning and calls of tools, whose engine dies: another engine begins anew, or goes on."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.scripted_engine import Request, Response
from tests.support.streaming_client import LiveStream, open_stream
from tests.world.scenario import World, scenario
from tests.world.speakers import (
    ARGUMENTS,
    BODY,
    CALL,
    CALLS,
    TOOLS,
    Said,
    Speaker,
    another_router,
    said,
    start,
    thoughts,
)


@scenario
async def test_two_engines_die_while_they_reason_and_a_third_calls_the_tool(world: World) -> None:
    first, second = (Speaker(name, *thoughts(name), breaks=True) for name in "ab")
    third = Speaker("c", *thoughts("c"), {"content": "I look."}, *CALLS)
    router = await start(world, first, second, third)
    answer = await router.post("/v1/chat/completions", BODY)
    reasoning = "a0 a1 a2 \n\nb0 b1 b2 \n\nc0 c1 c2 "
    assert said(answer.content) == Said(reasoning, "I look.", [CALL, ARGUMENTS], ["tool_calls"], 8)
    assert first.bodies == second.bodies == third.bodies
    metrics = await router.metrics()
    assert metrics['llm_continuations_total{model="llama",reason="broken-off",result="continued"}'] == 2
    assert metrics['llm_continuation_tokens_total{model="llama"}'] == 2 * 3  # the prompt
    assert metrics['llm_cache_writes_total{result="continued"}'] == 1  # it is not stored


@scenario
async def test_followers_get_the_bytes_of_a_stream_that_began_anew(world: World) -> None:
    first, second = Speaker("a", *thoughts("a"), breaks=True), Speaker("b", *thoughts("b"), {"content": "Yes."})
    first.may_break.clear()
    router = await start(world, first, second)
    other = await another_router(world, first, second)
    fields = {name: BODY[name] for name in ("tools", "temperature", "max_tokens", "stream_options")}
    async with AsyncExitStack() as stack:
        streams: list[LiveStream] = []
        for where in (router, other, router):
            streams.append(await stack.enter_async_context(open_stream(where, "x", **fields)))
            await streams[-1].read_until(b"a0")
        first.may_break.set()
        answers = await asyncio.gather(*[stream.read_to_end() for stream in streams])
        assert [stream.headers["x-cache"] for stream in streams] == ["MISS", "COALESCED", "COALESCED"]
    assert set(answers) == {answers[0]}
    assert said(answers[0]) == Said("a0 a1 a2 \n\nb0 b1 b2 ", "Yes.", [], ["stop"], 5)
    assert len(first.bodies) == len(second.bodies) == 1


@scenario
async def test_an_engine_that_repeats_the_reasoning_goes_on_with_it(world: World) -> None:
    first = Speaker("a", *thoughts("x"), breaks=True)
    second = Speaker("b", *thoughts("x"), {"reasoning": "so"}, {"content": "Yes."})
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", BODY)
    assert said(answer.content) == Said("x0 x1 x2 so", "Yes.", [], ["stop"], 6)


@pytest.mark.parametrize("rest", [CALLS, ({"content": " at the"}, {"content": " sea."}, *CALLS)], ids=["call", "text"])
@scenario
async def test_a_chat_with_tools_goes_on_after_its_text(world: World, rest: Sequence[dict[str, Any]]) -> None:
    first = Speaker("a", {"content": "I "}, {"content": "look"}, breaks=True)
    second = Speaker("b", *rest)
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", BODY)
    text = "I look" + "".join(delta.get("content", "") for delta in rest)
    assert said(answer.content) == Said("", text, [CALL, ARGUMENTS], ["tool_calls"], 2 + len(rest) + 1)
    body = second.bodies[0]
    assert body["messages"][-1] == {"role": "assistant", "content": "I look"}
    assert (body["continue_final_message"], body["tools"], body["max_tokens"]) == (True, TOOLS, 48)
    assert (await router.metrics())['llm_cache_writes_total{result="continued"}'] == 1


@scenario
async def test_a_chat_whose_call_has_begun_does_not_go_on(world: World) -> None:
    first, second = Speaker("a", {"content": "I look"}, *CALLS, breaks=True), Speaker("b", *CALLS)
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", BODY)
    assert answer.content.count(b'"error"') == 1
    assert not second.bodies


@scenario
async def test_a_chat_whose_reasoning_reached_the_clients_limit_is_completed_without_an_engine(world: World) -> None:
    first = Speaker("a", {"reasoning": "one"}, {"reasoning": "two"}, breaks=True)
    second = Speaker("b", {"reasoning": "other"})
    router = await start(world, first, second)
    answer = await router.post("/v1/chat/completions", {**BODY, "max_tokens": 2})
    assert said(answer.content)[0] == "onetwo"
    assert b'"finish_reason":"length"' in answer.content
    assert not second.bodies


class SlowSpeaker(Speaker):
    async def __call__(self, request: Request) -> Response:
        if request.method == "POST":
            await asyncio.sleep(25)
        return await super().__call__(request)


@scenario
async def test_the_total_timeout_of_a_chat_that_begins_anew_begins_anew(world: World) -> None:
    first, second = Speaker("a", {"reasoning": "one"}, breaks=True), SlowSpeaker("b", {"content": "two"})
    first.may_break.clear()
    router = await start(world, first, second)
    asked = asyncio.create_task(router.post("/v1/chat/completions", {**BODY, "max_tokens": 5}))
    await asyncio.sleep(9)
    first.may_break.set()
    assert said((await asked).content)[:2] == ("one", "two")
