"""What a request refers to that stands elsewhere: images, audio, video and files by their address or id.

An engine fetches such content when it answers, and it can change at any time, so the request alone does not decide the
answer. What is inline (`data:` addresses, base64, file_data) is part of the request and of its key.

The shapes are OpenAI's, Anthropic's and vLLM's (which takes `{"image_url": "https://..."}` without a type, and a `uuid`
in place of content that it has seen before).
"""

from typing import Any, Final

from router.core.endpoints.request import InferenceRequest

_TEXT_TYPES: Final = frozenset(
    ("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning_text", "summary_text",
     "tool_use", "search_result")
)  # fmt: skip
"""Parts in which an address is only a text."""

_URL_FIELDS: Final = frozenset(("url", "image_url", "audio_url", "video_url", "file_url", "image", "audio", "video"))
_ID_FIELDS: Final = frozenset(("file_id", "uuid"))
_DATA_SCHEME: Final = "data:"


def find_remote_content(request: InferenceRequest) -> str | None:
    """The name of the first field that refers to content elsewhere; None where there is none, as in most requests."""
    fields = request.fields
    for items in (fields.get("messages"), fields.get("input")):
        if type(items) is not list:
            continue
        for item in items:
            if type(item) is not dict:
                break  # texts or token ids of embeddings, which are all alike
            if type(item.get("content")) is str and len(item) == 2:
                continue  # a role and a text, as most messages are
            if (found := _find_in_item(item)) is not None:
                return found
    return None


def _find_in_item(item: dict[str, Any]) -> str | None:
    content = item.get("content")
    if isinstance(content, list) and (found := _find_in_parts(content)) is not None:
        return found
    if "output" in item and (found := _find_in_part({"content": item["output"]})) is not None:
        return found  # of a tool that the client ran, in /v1/responses
    audio = item.get("audio")
    return "audio" if isinstance(audio, dict) and audio.get("id") else None  # an earlier answer, kept by the provider


def _find_in_parts(parts: list[Any]) -> str | None:
    for part in parts:
        if isinstance(part, dict) and (found := _find_in_part(part)) is not None:
            return found
    return None


def _find_in_part(part: dict[str, Any]) -> str | None:
    if part.get("type") in _TEXT_TYPES:
        return None
    for name, value in part.items():
        found = None
        if isinstance(value, str):
            if value and (name in _ID_FIELDS or (name in _URL_FIELDS and value[:5].lower() != _DATA_SCHEME)):
                return name
        elif isinstance(value, dict):
            found = _find_in_part(value)
        elif isinstance(value, list):
            found = _find_in_parts(value)
        if found is not None:
            return found
    return None
