"""The response object that ends an answer of /v1/responses."""

from typing import Final, NamedTuple

import msgspec

from router.core.endpoints.conversations.items import NULL, items_of
from router.core.endpoints.recording.sse import payload, split_events
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError

_STATUSES: Final = ("completed", "incomplete")
_EVENTS: Final = tuple(f"response.{status}" for status in _STATUSES)


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = NULL


class _Response(msgspec.Struct):
    id: str
    status: str
    output: msgspec.Raw
    error: msgspec.Raw = NULL


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class FinalResponse(NamedTuple):
    """`body`: the object as it was sent. `items`: of its output."""

    id: str
    items: bytes
    body: bytes


def find_final_response(data: bytes, *, is_stream: bool) -> FinalResponse | None:
    """None for an answer that has failed. `data`: all of it, or the last events of a stream."""
    try:
        body = _last_response(data) if is_stream else data
        response = _decode_response(body)
        if response.status not in _STATUSES or bytes(response.error) != b"null":
            return None
        return FinalResponse(response.id, items_of(response.output), body)
    except (*MALFORMED_RESPONSE_ERRORS, ApiError):  # the engine's; the client has it as it is
        return None


def _last_response(data: bytes) -> bytes:
    """Raises MALFORMED_RESPONSE_ERRORS."""
    for event in reversed(split_events(data)):
        # Only the last events: those before may be thousands.
        text = payload(event)
        if text and (decoded := _decode_event(text)).type:
            return bytes(decoded.response) if decoded.type in _EVENTS else b""
    return b""
