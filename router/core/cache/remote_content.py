"""Finds remote content in a request: images, audio, video and files that it refers to by URL or id.

An engine fetches such content when it generates, and it can change at any time, so the response depends on more than
the request. Inline content (`data:` URLs, base64, file_data) is part of the request and of its key.

The shapes are those of OpenAI, Anthropic and vLLM (which accepts `{"image_url": "https://..."}` without a type, and a
`uuid` in place of content that it has seen before).
"""

from typing import Any, Final

from router.core.endpoints.endpoint import InferenceRequest, ScoredInput

_TEXT_TYPES: Final = frozenset(
    ("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning_text", "summary_text",
     "tool_use", "search_result")
)  # fmt: skip
"""Types of content parts that are text, so that a URL in them is not fetched."""

_URL_FIELDS: Final = frozenset(("url", "image_url", "audio_url", "video_url", "file_url", "image", "audio", "video"))
_ID_FIELDS: Final = frozenset(("file_id", "uuid"))
_DATA_SCHEME: Final = "data:"


def find_remote_content(request: InferenceRequest) -> str | None:
    """The name of the first field that refers to remote content; None if there is none."""
    fields, layout = request.fields, request.endpoint.input
    if isinstance(layout, ScoredInput):
        return _find_in_scored(layout, fields)
    for items in (fields.get("messages"), fields.get("input")):
        if type(items) is not list:
            continue
        for item in items:
            if type(item) is not dict:
                break  # texts or token ids of an embeddings request: none of the items is a message
            if type(item.get("content")) is str and len(item) == 2:
                continue  # most messages are just a role and a text
            if (field := _find_in_item(item)) is not None:
                return field
    return None


def _find_in_scored(layout: ScoredInput, fields: dict[str, Any]) -> str | None:
    for name in (*layout.query_fields, *layout.document_fields):
        value = fields.get(name)
        for item in value if isinstance(value, list) else (value,):  # texts and objects may be mixed
            if isinstance(item, dict) and (field := _find_in_part(item)) is not None:
                return field
    return None


def _find_in_item(item: dict[str, Any]) -> str | None:
    content = item.get("content")
    if isinstance(content, list) and (field := _find_in_parts(content)) is not None:
        return field
    # The result of a tool that the client ran, in /v1/responses.
    if "output" in item and (field := _find_in_part({"content": item["output"]})) is not None:
        return field
    audio = item.get("audio")  # an earlier audio response, which the provider stores
    return "audio" if isinstance(audio, dict) and audio.get("id") else None


def _find_in_parts(parts: list[Any]) -> str | None:
    for part in parts:
        if isinstance(part, dict) and (field := _find_in_part(part)) is not None:
            return field
    return None


def _find_in_part(part: dict[str, Any]) -> str | None:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_TYPES:
        return None
    for name, value in part.items():
        field = None
        if isinstance(value, str):
            if value and (name in _ID_FIELDS or (name in _URL_FIELDS and value[:5].lower() != _DATA_SCHEME)):
                return name
        elif isinstance(value, dict):
            field = _find_in_part(value)
        elif isinstance(value, list):
            field = _find_in_parts(value)
        if field is not None:
            return field
    return None
