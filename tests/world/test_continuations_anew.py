"""Streams whose engine dies while it reasons, and that another engine begins anew."""

import json
from typing import Any, Final

import httpx

from tests.support.router_server import LLAMA, router_config
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response
from tests.support.sse_answers import parse_events
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

TOOLS: Final = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL: Final = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USAGE: Final = {"prompt_tokens": 4, "total_tokens": 9, "completion_tokens": 5}


class Thinker:
    """An engine of vLLM that reasons, and calls a tool. With `breaks`, its connection closes while it reasons."""

    def __init__(self, name: str, *, breaks: bool) -> None:
        self.name = name
        self.breaks = breaks
        self.bodies: list[dict[str, Any]] = []
        self.engine = ScriptedEngine(script=self)

    async def __call__(self, request: Request) -> Response:
        if request.path == "/v1/models":
            return json_response({"data": [{"id": LLAMA, "object": "model", "owned_by": "vllm"}]})
        if request.method != "POST":
            return Response()
        self.bodies.append(json.loads(request.body))
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": ""},
            *({"reasoning": f"{self.name}{number} "} for number in range(3)),
        ]
        if self.breaks:
            return Response(self._frames(deltas, None), content_type="text/event-stream", end="close")
        return Response(
            self._frames([*deltas, {"content": "I look."}, {"tool_calls": [CALL]}], USAGE),
            content_type="text/event-stream",
        )

    def _frames(self, deltas: list[dict[str, Any]], usage: dict[str, Any] | None) -> list[bytes]:
        head: dict[str, Any] = {
            "id": f"chat-{self.name}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": LLAMA,
        }
        choices: list[dict[str, Any]] = [
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
        ]
        if usage is not None:
            choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"})
        events: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in choices]
        if usage is not None:
            events.append({**head, "choices": [], "usage": usage})
        frames = [b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode() for event in events]
        return [*frames, b"data: [DONE]\n\n"] if usage is not None else frames


async def start(world: World, *thinkers: Thinker, **options: Any) -> WorldRouter:
    for thinker in thinkers:
        await thinker.engine.start()
    table = {thinker.name: ("llama", "any", thinker.engine.url) for thinker in thinkers}
    return await world.router(router_config(world.redis.url, table, **options))


async def ask(router: WorldRouter, **fields: Any) -> httpx.Response:
    body = {"model": "llama", "stream": True, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    return await router.post("/v1/chat/completions", {**body, **fields})


def said(answer: httpx.Response) -> tuple[str, str, list[Any]]:
    """The reasoning, the text and the calls."""
    deltas = [event["choices"][0]["delta"] for event in parse_events(answer.content) if event["choices"]]
    reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
    return reasoning, "".join(delta.get("content") or "" for delta in deltas), [
        call for delta in deltas for call in delta.get("tool_calls") or ()
    ]  # fmt: skip


@scenario
async def test_two_engines_die_while_they_reason_and_a_third_calls_the_tool(world: World) -> None:
    first, second, third = (Thinker(name, breaks=name != "c") for name in "abc")
    router = await start(world, first, second, third)
    answer = await ask(router, temperature=0, max_tokens=50, stream_options={"include_usage": True})
    assert said(answer) == ("a0 a1 a2 \n\nb0 b1 b2 \n\nc0 c1 c2 ", "I look.", [CALL])
    events = parse_events(answer.content)
    assert {event["id"] for event in events} == {"chat-a"}
    assert events[-1]["usage"] == USAGE
    assert answer.content.count(b'"role"') == answer.content.count(b"[DONE]") == 1
    assert [thinker.bodies[0]["max_tokens"] for thinker in (first, second, third)] == [50, 50, 50]
    metrics = await router.metrics()
    assert metrics['llm_continuations_total{model="llama",reason="broken-off",result="continued"}'] == 2
    assert metrics['llm_cache_writes_total{result="continued"}'] == 1  # it is not stored
    assert third.bodies[0]["messages"] == first.bodies[0]["messages"]
