"""Parses the events of a stream into the JSON response, or into plain text if no JSON has all their information."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from router.core.endpoints.chat_body import body_from_events
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.recorded_response import check_deltas, check_indexes
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS, MalformedResponseError

_TEXT_FIELDS: Final = frozenset(
    ("content", "text", "reasoning", "reasoning_content", "refusal", "arguments", "thinking", "partial_json")
)
_decode_events = msgspec.json.Decoder(list[dict[str, Any]]).decode
_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def parse_frames(frames: list[bytes]) -> list[dict[str, Any]]:
    """The payloads of the events of a chat or of completions, without comments; their choices have an index each.

    Raises MALFORMED_RESPONSE_ERRORS.
    """
    payloads = [data for frame in frames if (data := payload(frame)) is not None]
    # One call of the decoder for all. Payloads that are only valid together, such as `{"a":1` and `"b":2}`, would pass,
    # so compare the numbers.
    events = _decode_events(b"[%b]" % b",".join(payloads))
    if len(events) != len(payloads):
        raise MalformedResponseError("an event is not a JSON object")
    check_indexes(events)
    return events


def finish_reasons(events: list[dict[str, Any]]) -> dict[int, Any]:
    """By index, the finish reason of each choice of a chat or of completions; a falsy value if it has none.

    Where there are several, the last one counts. `events`: as `parse_frames` returns them.
    """
    reasons: dict[int, Any] = {}
    for event in events:
        for choice in event.get("choices") or ():
            index, reason = choice["index"], choice.get("finish_reason")
            if reason or index not in reasons:
                reasons[index] = reason
    return reasons


def join_events(choices_format: ChoicesFormat, events: list[dict[str, Any]], usage_frame: bytes | None) -> bytes | None:
    """The JSON response of chats or completions; None if no JSON has all the information of the events.

    `events`: as `parse_frames` returns them.
    """
    try:
        check_deltas(events)
        usage = _decode_event(payload(usage_frame) or b"") if usage_frame is not None else None
        return body_from_events(choices_format, events, usage)
    except MALFORMED_RESPONSE_ERRORS:
        return None


def extract_text(frames: Iterable[bytes]) -> bytes:
    """A JSON object for people to read, `{"text": ...}`, with all text of the events."""
    pieces: list[str] = []
    for frame in frames:
        try:
            _collect_texts(msgspec.json.decode(payload(frame) or b"null"), pieces)
        except MALFORMED_RESPONSE_ERRORS:
            continue  # an event that is not JSON has no text for people
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
