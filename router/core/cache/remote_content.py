"""What a request refers to that stands elsewhere: images, audio, video and files by their address or id.

An engine fetches such content when it answers, and it can change at any time, so the request alone does not decide the
answer. What is inline (`data:` addresses, base64, file_data) is part of the request and of its key.

The shapes are OpenAI's, Anthropic's and vLLM's (which takes `{"image_url": "https://..."}` without a type, and a `uuid`
in place of content that it has seen before).
"""

from typing import Any, Final

from router.core.endpoints.request import Request

_TEXTS: Final = frozenset(
    ("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning_text", "summary_text",
     "tool_use", "search_result")
)  # fmt: skip
"""Parts in which an address is only a text."""

_ADDRESSES: Final = frozenset(("url", "image_url", "audio_url", "video_url", "file_url", "image", "audio", "video"))
_IDS: Final = frozenset(("file_id", "uuid"))
_INLINE: Final = "data:"


def remote_content(request: Request) -> str | None:
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
            if (found := _in_item(item)) is not None:
                return found
    return None


def _in_item(item: dict[str, Any]) -> str | None:
    content = item.get("content")
    if isinstance(content, list) and (found := _in_parts(content)) is not None:
        return found
    if "output" in item and (found := _in_part({"content": item["output"]})) is not None:
        return found  # of a tool that the client ran, in /v1/responses
    audio = item.get("audio")
    return "audio" if isinstance(audio, dict) and audio.get("id") else None  # an earlier answer, kept by the provider


def _in_parts(parts: list[Any]) -> str | None:
    for part in parts:
        if isinstance(part, dict) and (found := _in_part(part)) is not None:
            return found
    return None


def _in_part(part: dict[str, Any]) -> str | None:
    if part.get("type") in _TEXTS:
        return None
    for name, value in part.items():
        found = None
        if isinstance(value, str):
            if value and (name in _IDS or (name in _ADDRESSES and value[:5].lower() != _INLINE)):
                return name
        elif isinstance(value, dict):
            found = _in_part(value)
        elif isinstance(value, list):
            found = _in_parts(value)
        if found is not None:
            return found
    return None
