"""What is made of recent requests: the order of a warm-up, and the bodies that are replayed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.shared.recent_prompts import RecentPrompt

_PREVIEW: Final = 80  # characters
_STREAM_FIELDS: Final = ("stream", "stream_options")
_LENGTH_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
_LIMIT_BY_PATH: Final = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}


def most_frequent_first(prompts: Sequence[RecentPrompt]) -> list[RecentPrompt]:
    """One request of each prefix first, the most frequent prefix before the others; then the rest.

    The prefix is what precedes the last message, or the system prompt: what requests have in common.
    """
    prefixes = [_prefix(prompt) for prompt in prompts]
    counts = Counter(prefixes)
    seen: Counter[bytes] = Counter()
    ranked = []
    for position, (prompt, prefix) in enumerate(zip(prompts, prefixes, strict=True)):
        ranked.append((seen[prefix], -counts[prefix], position, prompt))
        seen[prefix] += 1
    return [prompt for *_, prompt in sorted(ranked, key=lambda rank: rank[:3])]


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


def _prefix(prompt: RecentPrompt) -> bytes:
    match _fields(prompt):
        case {"messages": [*earlier, _], **rest}:
            return msgspec.json.encode([prompt.path, rest.get("system"), earlier, rest.get("cache_salt")])
        case {"input": [*earlier, _], **rest}:
            return msgspec.json.encode([prompt.path, rest.get("instructions"), earlier, rest.get("cache_salt")])
        case fields:
            shared = [fields.get(name) for name in ("instructions", "cache_salt")]
            return msgspec.json.encode([prompt.path, *shared])


def _fields(prompt: RecentPrompt) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(prompt.body)
    return fields


def _without(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
