"""/v1/chat/completions/derender: the message that the parsers of a chat make of the ids of its tokens.

vLLM serves it with --enable-scale-out. Here it knows the answers of a tool script only, since an id has no text.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from engines.simulator.endpoints.json_endpoint import JsonApi, JsonRequest
from engines.simulator.engine.core import NOT_CACHED, Delta
from engines.simulator.formats.bodies import ChoiceAccumulator, chat_body
from engines.simulator.formats.frames import Envelope, usage_object
from engines.simulator.rejections import Rejection
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.scripted_answers import read_ids, scripted_tokens
from engines.simulator.validation import fields
from engines.simulator.validation.requests import GenerationRequest, chat_request

_DISABLED: Final = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
_NO_REQUEST: Final = (
    "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak "
    "raw parser markup into content."
)
_TYPES: Final = {
    "model": "text", "generate_response": "object", "prompt_tokens": "integer", "chat_request": "object",
}  # fmt: skip
_FORMS: Final = (
    "DerenderChatRequest.generate_response",
    "DerenderChatStreamRequest.stream",
    "DerenderChatStreamRequest.generate_chunk",
)


def derender_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    if not settings.enable_scale_out:
        raise Rejection(403, _DISABLED, "PermissionDeniedError")
    if body.get("generate_response") is None:
        raise fields.missing_fields(body, *_FORMS)
    body = fields.coerce(body, _TYPES)
    if body.get("chat_request") is None:
        raise Rejection(400, _NO_REQUEST)
    # vLLM does not look at the model of the chat, which may be the client's name for it.
    request = chat_request({**body["chat_request"], "model": None}, settings)
    response = body["generate_response"]
    given = response.get("choices") or []
    choices = [_choice(request, choice) for choice in given]
    ids = sum(len(choice["token_ids"]) for choice in given)
    name = str(response.get("request_id") or secrets.token_hex(8))

    def make_body(_: dict[str, str], now: float) -> dict[str, Any]:
        envelope = Envelope(name, int(now), body.get("model") or settings.model_names[0], "")
        answer: dict[str, Any] = chat_body(request, envelope, choices, finish=True)
        for choice, said in zip(answer["choices"], given, strict=True):
            choice["finish_reason"] = said.get("finish_reason", "stop")
            for call in choice["message"].get("tool_calls", ()):
                call["id"] = secrets.token_hex(8)
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        usage = usage_object(body.get("prompt_tokens") or 0, ids, **details)
        return answer | {"system_fingerprint": None, "usage": usage, "prompt_token_ids": None}

    return JsonRequest("", (), make_body)


def _choice(request: GenerationRequest, given: Mapping[str, Any]) -> ChoiceAccumulator:
    ids = given.get("token_ids")
    if not ids:
        raise Rejection(400, f"choice {given.get('index')} has empty or null token_ids")
    if not request.tool_calls:
        raise Rejection(400, "simulator: these are not the tokens of a scripted call")
    answer = scripted_tokens(request.tool_calls[0], request.thought, request.text_before_calls)
    tokens = read_ids(answer, ids)
    if tokens is None:
        raise Rejection(400, "simulator: these are not the tokens of this chat's answer")
    is_whole = next(answer, None) is None
    choice = ChoiceAccumulator()
    choice.add(Delta(0, tokens, tokens, NOT_CACHED, "stop" if is_whole else "length"))
    return choice


DERENDER_API: Final = JsonApi("/v1/chat/completions/derender", derender_request)
