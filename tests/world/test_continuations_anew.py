"""Streams of agents, with reasoning and calls of tools, whose engine dies: another engine begins anew, or goes on."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

import pytest

from tests.support.router_server import LLAMA, router_config
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response
from tests.support.sse_answers import parse_events
from tests.support.streaming_client import LiveStream, open_stream
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

TOOLS: Final = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL: Final = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "look", "arguments": ""}}
ARGUMENTS: Final = {"index": 0, "function": {"arguments": '{"at":"sea"}'}}
CALLS: Final[Sequence[dict[str, Any]]] = ({"tool_calls": [CALL]}, {}, {"tool_calls": [ARGUMENTS]})
"""As vLLM sends them where ids are asked for: an event in the middle has only these."""


class Speaker:
    """An engine of vLLM that says these deltas; with `breaks`, its connection closes then, once `may_break` is set."""

    def __init__(self, name: str, *deltas: dict[str, Any], breaks: bool = False) -> None:
        self.name = name
        self.deltas = deltas
        self.breaks = breaks
        self.may_break = asyncio.Event()
        self.may_break.set()
        self.bodies: list[dict[str, Any]] = []
        self.engine = ScriptedEngine(script=self)

    async def __call__(self, request: Request) -> Response:
        if request.path == "/v1/models":
            return json_response({"data": [{"id": LLAMA, "object": "model", "owned_by": "vllm"}]})
        if request.method != "POST":
            return Response()
        self.bodies.append(json.loads(request.body))
        frames = self._frames(with_ids=bool(self.bodies[-1].get("return_token_ids")))
        return Response(
            self._send(frames), content_type="text/event-stream", end="close" if self.breaks else "complete"
        )

    async def _send(self, frames: list[bytes]) -> AsyncGenerator[bytes, None]:
        for frame in frames:
            yield frame
        await self.may_break.wait()

    def _frames(self, *, with_ids: bool) -> list[bytes]:
        head: dict[str, Any] = {"id": f"chat-{self.name}", "object": "chat.completion.chunk", "created": 1}
        events: list[dict[str, Any]] = []
        for number, delta in enumerate(({"role": "assistant", "content": ""}, *self.deltas)):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            if number:
                choice["token_ids"] = [900 + number] if with_ids else None
            if delta or with_ids:
                events.append({**head, "model": LLAMA, "choices": [choice]})
        events[0] |= {"prompt_token_ids": [7, 8, 9] if with_ids else None, "prompt_text": None}
        if self.breaks:
            return [_encode(event) for event in events]
        reason = "tool_calls" if "tool_calls" in self.deltas[-1] else "stop"
        end = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": reason,
            "token_ids": [2] if with_ids else None,
        }
        used = len(self.deltas) + 1
        usage = {"prompt_tokens": 3, "total_tokens": 3 + used, "completion_tokens": used}
        events += [{**head, "model": LLAMA, "choices": [end]}, {**head, "model": LLAMA, "choices": [], "usage": usage}]
        return [*map(_encode, events), b"data: [DONE]\n\n"]


def _encode(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode()


def thoughts(name: str) -> list[dict[str, Any]]:
    return [{"reasoning": f"{name}{number} "} for number in range(3)]


async def start(world: World, *speakers: Speaker) -> WorldRouter:
    for speaker in speakers:
        await speaker.engine.start()
    return await another_router(world, *speakers)


async def another_router(world: World, *speakers: Speaker) -> WorldRouter:
    table = {speaker.name: ("llama", "any", speaker.engine.url) for speaker in speakers}
    return await world.router(router_config(world.redis.url, table))


BODY: Final[dict[str, Any]] = {
    "model": "llama", "stream": True, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS,
    "temperature": 0, "max_tokens": 50, "stream_options": {"include_usage": True},
}  # fmt: skip


class Said(NamedTuple):
    reasoning: str
    text: str
    calls: list[dict[str, Any]]
    finish: list[str]
    tokens: int


def said(content: bytes) -> Said:
    events = parse_events(content)
    assert {event["id"] for event in events} == {"chat-a"}
    assert content.count(b'"role"') == content.count(b"[DONE]") == 1
    assert b'token_ids":[' not in content
    choices = [event["choices"][0] for event in events if event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    return Said(
        "".join(delta.get("reasoning") or "" for delta in deltas),
        "".join(delta.get("content") or "" for delta in deltas),
        [call for delta in deltas for call in delta.get("tool_calls") or ()],
        [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        events[-1]["usage"]["completion_tokens"],
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
