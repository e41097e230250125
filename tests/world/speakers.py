"""Engines of vLLM with a script of deltas, which may die in the middle of it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple

from router.core.endpoints.continuation.derendered_chat import DERENDER_PATH
from tests.support.router_server import LLAMA, router_config
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response
from tests.support.sse_answers import parse_events
from tests.world.processes import WorldRouter
from tests.world.scenario import World

PROMPT_IDS: Final = [7, 8, 9]
EOS: Final = 2
_FIRST_ID: Final = 901
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
        self.token_seconds = 0.0
        self.may_break = asyncio.Event()
        self.may_break.set()
        self.bodies: list[dict[str, Any]] = []
        self.engine = ScriptedEngine(script=self)

    async def __call__(self, request: Request) -> Response:
        if request.path == "/v1/models":
            return json_response({"data": [{"id": LLAMA, "object": "model", "owned_by": "vllm"}]})
        if request.method != "POST":
            return Response()
        body = json.loads(request.body)
        if request.path == DERENDER_PATH:
            return self._derender(body)
        self.bodies.append(body)
        frames = self._frames(with_ids=bool(body.get("return_token_ids")))
        if request.path == "/v1/completions":
            frames = self._completion(body["prompt"])
        return Response(
            self._send(frames), content_type="text/event-stream", end="close" if self.breaks else "complete"
        )

    def _derender(self, _: dict[str, Any]) -> Response:
        return json_response({"error": {"message": "Scale-out endpoints are disabled.", "code": 403}}, 403)

    def _completion(self, _prompt: list[int]) -> list[bytes]:
        raise NotImplementedError

    async def _send(self, frames: list[bytes]) -> AsyncGenerator[bytes, None]:
        for frame in frames:
            await asyncio.sleep(self.token_seconds)
            yield frame
        await self.may_break.wait()

    def _frames(self, *, with_ids: bool) -> list[bytes]:
        head: dict[str, Any] = {"id": f"chat-{self.name}", "object": "chat.completion.chunk", "created": 1}
        events: list[dict[str, Any]] = []
        for number, delta in enumerate(({"role": "assistant", "content": ""}, *self.deltas)):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            if number:
                choice["token_ids"] = [_FIRST_ID + number - 1] if with_ids else None
            if delta or with_ids:
                events.append({**head, "model": LLAMA, "choices": [choice]})
        events[0] |= {"prompt_token_ids": PROMPT_IDS if with_ids else None, "prompt_text": None}
        if self.breaks:
            return [_encode(event) for event in events]
        reason = "tool_calls" if "tool_calls" in self.deltas[-1] else "stop"
        end = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": reason,
            "token_ids": [EOS] if with_ids else None,
        }
        used = len(self.deltas) + 1
        usage = {"prompt_tokens": 3, "total_tokens": 3 + used, "completion_tokens": used}
        events += [{**head, "model": LLAMA, "choices": [end]}, {**head, "model": LLAMA, "choices": [], "usage": usage}]
        return [*map(_encode, events), b"data: [DONE]\n\n"]


class ScaledOutSpeaker(Speaker):
    """One with --enable-scale-out. All of these have the same response, of one token for each delta.

    `says`: how many of them, until it breaks off. `steps`: tokens of its events in a completion, repeated.
    `has_parser`: what it is started with.
    `derendered` are the requests to its parser.
    """

    def __init__(
        self, name: str, *response: dict[str, Any], says: int | None = None, steps: Sequence[int] = (1,)
    ) -> None:
        super().__init__(name, *response[:says], breaks=says is not None)
        self.response = response
        self.steps = steps
        self.derendered: list[dict[str, Any]] = []
        self.has_parser = True

    def _completion(self, prompt: list[int]) -> list[bytes]:
        said = len(prompt) - len(PROMPT_IDS)
        assert prompt == [*PROMPT_IDS, *range(_FIRST_ID, _FIRST_ID + said)]
        end = len(self.deltas)
        head = {"id": f"cmpl-{self.name}", "object": "text_completion", "created": 2, "model": LLAMA}
        events: list[dict[str, Any]] = []
        while said < end:
            step = min(self.steps[len(events) % len(self.steps)], end - said)
            ids = list(range(_FIRST_ID + said, _FIRST_ID + said + step))
            choice = {"index": 0, "text": "<raw>", "logprobs": None, "finish_reason": None, "token_ids": ids}
            events.append({**head, "choices": [choice]})
            said += step
        if self.breaks:
            return [_encode(event) for event in events]
        last = {"index": 0, "text": "", "finish_reason": "stop", "stop_reason": None, "token_ids": [EOS]}
        generated = len(self.response) + 1 - (len(prompt) - len(PROMPT_IDS))
        usage = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + generated, "completion_tokens": generated}
        events += [{**head, "choices": [last]}, {**head, "choices": [], "usage": usage}]
        return [*map(_encode, events), b"data: [DONE]\n\n"]

    def _derender(self, body: dict[str, Any]) -> Response:
        if not self.has_parser:
            return super()._derender(body)
        if not body:
            return json_response({"error": {"message": "Field required", "code": 400}}, 400)
        self.derendered.append(body)
        response = body["generate_response"]
        (choice,) = response["choices"]
        assert response["prompt_token_ids"] == PROMPT_IDS
        message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
        for number, token in enumerate(choice["token_ids"]):
            assert token == _FIRST_ID + number
            for name, value in self.response[number].items():
                if name != "tool_calls":
                    message[name] += value
                    continue
                for part in value:
                    if "id" in part:
                        message[name].append(json.loads(json.dumps(part | {"id": "new"})))
                    else:
                        message[name][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        return json_response({"id": "derendered", "choices": [{"index": 0, "message": message}]})


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
    """What a stream says that began at the engine `a`."""
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
