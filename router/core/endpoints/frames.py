"""The JSON answer that the events of a stream make, and the text of a stream that makes none."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from router.core.endpoints.chat_body import body_from_events
from router.core.endpoints.sse import payload
from router.core.types import Endpoint

_TEXT_FIELDS: Final = frozenset(
    ("content", "text", "reasoning", "reasoning_content", "refusal", "arguments", "thinking", "partial_json")
)
EVENT_PARSE_ERRORS: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What reading and joining events raise for JSON that is not what it should be."""

_decode_events = msgspec.json.Decoder(list[dict[str, Any]]).decode
_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def parse_frames(frames: list[bytes]) -> list[dict[str, Any]]:
    """What the events of a stream say; comments say nothing. Raises NOT_EVENTS."""
    payloads = [data for frame in frames if (data := payload(frame)) is not None]
    events = _decode_events(b"[%b]" % b",".join(payloads))
    if len(events) != len(payloads):
        raise TypeError("an event is no JSON of its own")
    return events


def finish_reasons(events: list[dict[str, Any]]) -> dict[int, Any]:
    """How each choice of a chat or of completions ended, by index; its last word counts. Raises TypeError, KeyError."""
    reasons: dict[int, Any] = {}
    for event in events:
        choices = event.get("choices")
        if choices is None:
            continue
        if type(choices) is not list:
            raise TypeError("the choices are no list")
        for choice in choices:
            index, reason = choice["index"], choice.get("finish_reason")
            if type(index) is not int:
                raise TypeError("an index is no integer")
            if reason or index not in reasons:
                reasons[index] = reason
    return reasons


def join_events(endpoint: Endpoint, events: list[dict[str, Any]], usage_frame: bytes | None) -> bytes | None:
    """The JSON answer of chats and completions; None where the events make none without loss."""
    try:
        usage = _decode_event(payload(usage_frame) or b"") if usage_frame is not None else None
        return body_from_events(endpoint, events, usage)
    except EVENT_PARSE_ERRORS:
        return None


def extract_text(frames: Iterable[bytes]) -> bytes:
    """A JSON object for people to read, `{"text": ...}`, with all text that the events of a stream have."""
    pieces: list[str] = []
    for frame in frames:
        try:
            _collect_texts(msgspec.json.decode(payload(frame) or b"null"), pieces)
        except EVENT_PARSE_ERRORS:
            continue  # nothing to read in it
    return _encode({"text": "".join(pieces)})


def _collect_texts(value: Any, pieces: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _collect_texts(item, pieces)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _TEXT_FIELDS and isinstance(item, str):
                pieces.append(item)
            else:
                _collect_texts(item, pieces)
