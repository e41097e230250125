"""A script of an engine with a ToyModel: vLLM's bytes, and streams that break off where a test says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from router.core.endpoints.continuation.derendered_chat import DERENDER_PATH
from tests.support.router_server import LLAMA
from tests.support.scripted_engine import End, Request, Response, ScriptedEngine, json_response
from tests.support.toy_model import PROMPT_IDS, ToyModel, stream_bytes

ERROR_EVENT = b'data: {"error":{"message":"the engine core died","type":"InternalServerError","code":500}}\n\n'
_ENDS: Final[Mapping[str, End]] = {"reset": "reset", "close": "close", "stall": "hold"}


class Break(NamedTuple):
    """After so many bytes of a stream's events; `how`: reset, close, stall, error, abort, or refuse (a status 400).

    Also pause: the stream goes on after it; or unended: the response ends, and its last event lacks its empty line.
    """

    after: int
    how: str = "reset"


class ToyScript:
    """Its POST requests are in `bodies`, their paths in `paths`. `breaks`: of the next streams, in their order.

    A request that asks for no stream gets an empty object. `engine` is the one that follows this script.

    - `stalled` is set when a stream stalls.
    - `may_answer`: requests wait for it. `may_break`: streams wait for it before they break off.
    - `knows_ids`: whether it knows `return_token_ids`. `adapters`: the paths of its LoRA adapters, by id.
    - `deltas`: the fields of its chats; see stream_bytes.
    - `scaled_out`: it has a parser of tokens (vLLM's --enable-scale-out), for which a token has the field of its event.
    - `context`: its context length in tokens, which it does not check. `chat_limit`: of a chat that states none.
    """

    def __init__(
        self, model: ToyModel, *breaks: Break, name: str = "toy", groups: list[int] | None = None,
        kind: str = "vllm", knows_ids: bool = True, adapters: Mapping[str, str] = MappingProxyType({}),
        context: int = 4096, chat_limit: int = 4000, deltas: Sequence[str] = ("content",), scaled_out: bool = False,
    ) -> None:  # fmt: skip
        self.engine = ScriptedEngine(script=self)
        self.model = model
        self.breaks = list(breaks)
        self.name = name
        self.groups = groups or [1]
        self.kind = kind
        self.knows_ids = knows_ids
        self.adapters = dict(adapters)
        self.context = context
        self.deltas = deltas
        self.scaled_out = scaled_out
        self.default_limit = {True: chat_limit, False: 4000 if kind == "llamacpp" else 16}
        self.may_answer = _set_event()
        self.may_break = _set_event()
        self.asked_for_models = asyncio.Event()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.stalled = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        if request.method != "POST":
            return self._page(request.path)
        body = json.loads(request.body)
        if request.path == DERENDER_PATH:
            return self._derender(body)
        self.bodies.append(body)
        self.paths.append(request.path)
        await self.may_answer.wait()
        if not body.get("stream"):
            return json_response({})
        data = self._events(request.path, body)
        fault = self.breaks.pop(0) if self.breaks else None
        if fault is None:
            return Response(filter(None, _pieces(data)), content_type="text/event-stream")
        if fault.how == "refuse":
            return json_response({"error": {"message": "out of range"}}, 400)
        end = _ENDS.get(fault.how, "complete")
        return Response(self._broken_off(data, fault), content_type="text/event-stream", end=end)

    def _derender(self, body: dict[str, Any]) -> Response:
        if not (self.scaled_out and body):
            return json_response({"error": {"message": "disabled or empty"}}, 400 if self.scaled_out else 403)
        (choice,) = body["generate_response"]["choices"]
        message: dict[str, Any] = {"content": "", "tool_calls": []}
        arguments = ""
        for number, token in enumerate(self.model.tokens[: len(choice["token_ids"])]):
            name = self.deltas[min(number, len(self.deltas) - 1)]
            if name == "tool_calls":
                arguments += token.decode()
            else:
                message[name] = message.get(name, "") + token.decode()
        if arguments:
            message["tool_calls"] = [{"id": "new", "function": {"name": "", "arguments": arguments}}]
        return json_response({"choices": [{"message": message}]})

    def _page(self, path: str) -> Response:
        if path != "/v1/models":
            return Response()
        self.asked_for_models.set()
        model = {"id": LLAMA, "object": "model", "owned_by": self.kind, "max_model_len": self.context}
        adapters = [{**model, "id": id_, "root": root, "parent": LLAMA} for id_, root in self.adapters.items()]
        return json_response({"data": [model, *adapters]})

    def _events(self, path: str, body: dict[str, Any]) -> bytes:
        chat = path == "/v1/chat/completions"
        prompt = list(PROMPT_IDS)
        if chat and body.get("continue_final_message"):
            assert body["add_generation_prompt"] is False
            prompt += self.model.ids()[: self.model.tokens_of(body["messages"][-1]["content"])]
        elif not chat and isinstance(body["prompt"][0], int):
            prompt = body["prompt"]
        elif not chat:
            text = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"][0]
            prompt += self.model.ids()[: self.model.tokens_of(text.removeprefix("x"))]
        stop = body.get("stop") or []
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or self.default_limit[chat]
        events = self.model.steps(
            self.model.said(prompt),
            max_tokens=limit,
            stop=[stop] if isinstance(stop, str) else stop,
            groups=self.groups,
        )
        return stream_bytes(
            events, chat=chat, id_=f"{self.name}-{len(self.bodies)}", created=len(self.bodies), prompt=prompt,
            with_ids=bool(body.get("return_token_ids")) and self.knows_ids,
            usage=body["stream_options"]["include_usage"],
            continuous=bool(body["stream_options"].get("continuous_usage_stats")), deltas=self.deltas,
        )  # fmt: skip

    async def _broken_off(self, data: bytes, fault: Break) -> AsyncGenerator[bytes, None]:
        pieces = _pieces(data[: fault.after])
        match fault.how:
            case "error":
                pieces[-1] = ERROR_EVENT
            case "abort":
                pieces[-1] = pieces[-2].replace(b'"finish_reason":null', b'"finish_reason":"abort"')
            case "unended":
                pieces[-2:] = [pieces[-2].removesuffix(b"\n\n")]
        for piece in filter(None, pieces):
            yield piece
        await self.may_break.wait()
        if fault.how == "pause":
            yield data[fault.after :]
        elif fault.how == "stall":
            self.stalled.set()


def _pieces(data: bytes) -> list[bytes]:
    """Events, the last of which may be incomplete or empty."""
    *whole, last = data.split(b"\n\n")
    return [*(each + b"\n\n" for each in whole), last]


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


class NamedEngine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def engine(self) -> ScriptedEngine: ...


@contextlib.asynccontextmanager
async def toy_engines(*scripts: NamedEngine) -> AsyncIterator[dict[str, tuple[str, str, str]]]:
    """Starts their engines; yields what `router_config` takes: those of the model llama, by name, in this order."""
    config = await start_toys(*scripts)
    try:
        yield config
    finally:
        for script in scripts:
            await script.engine.stop()


async def start_toys(*scripts: NamedEngine) -> dict[str, tuple[str, str, str]]:
    for script in scripts:
        await script.engine.start()
    return {script.name: ("llama", "any", script.engine.url) for script in scripts}
