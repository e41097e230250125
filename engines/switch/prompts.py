"""What is made of recent requests: the order of a warm-up, and the bodies that are replayed."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.core.routing.prefix_cache.prompt_chain import NO_PROMPT, PromptChain, chain_seed, prompt_chain
from router.core.routing.prefix_cache.warm_up import most_saving_first
from router.errors import ApiError
from router.shared.prompts.recent_prompts import RecentPrompt

_PREVIEW: Final = 80  # characters
_STREAM_FIELDS: Final = ("stream", "stream_options")
_LENGTH_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
_LIMIT_BY_PATH: Final = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}


def warm_up_order(prompts: Sequence[RecentPrompt]) -> list[RecentPrompt]:
    """Those first whose prefixes save the most, as far as other recent requests have them too."""
    return [prompts[position] for position in most_saving_first([_chain(prompt) for prompt in prompts])]


def warm_up_body(prompt: RecentPrompt, served_model: str) -> bytes:
    """The request, for one token: the prefix cache is filled by the prompt, whatever follows.

    `served_model`: the name that this engine has for the model; the engine that got the request may have another.
    """
    fields = _without(_fields(prompt), (*_STREAM_FIELDS, *_LENGTH_FIELDS))
    limit = _LIMIT_BY_PATH.get(prompt.path)
    return msgspec.json.encode(fields | {"model": served_model} | ({limit: 1} if limit is not None else {}))


def replay_body(prompt: RecentPrompt, served_model: str) -> bytes:
    """The request, for an answer in JSON."""
    return msgspec.json.encode(_without(_fields(prompt), _STREAM_FIELDS) | {"model": served_model})


def is_deterministic(prompt: RecentPrompt) -> bool:
    """As InferenceRequest.deterministic: an omitted temperature is 1, not 0."""
    fields = _fields(prompt)
    return fields.get("temperature") == 0 or fields.get("seed") is not None


def preview(prompt: RecentPrompt) -> str:
    """The beginning of the last text, for a person."""
    match _fields(prompt):
        case {"messages": [*_, {"content": content}]} | {"input": [*_, {"content": content}]}:
            text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        case {"prompt": str(text)} | {"input": str(text)}:
            pass
        case _:
            text = prompt.path
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _chain(prompt: RecentPrompt) -> PromptChain:
    endpoint = ENDPOINT_BY_PATH.get(prompt.path)
    if endpoint is None:
        return NO_PROMPT
    try:
        request = parse_request(endpoint, bytes(prompt.body))
    except ApiError:
        return NO_PROMPT
    return prompt_chain(request, chain_seed(str(request.fields.get("cache_salt", ""))))


def _fields(prompt: RecentPrompt) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(prompt.body)
    return fields


def _without(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
