"""The errors of /v1/responses: OpenAI's body, and `response.failed` as the end of a stream.

`response.failed` has the response object as the stream's first event gave it, and the next `sequence_number`. Some
clients (Codex) know no other event that ends a stream early. In addition to the fields of OpenAI's reference, the event
has an `error`: OpenAI's own clients raise an exception for an event with this field, as for one of any other endpoint.

A request for a stream that exceeds the context gets a stream with this event, as at OpenAI: older versions of Codex do
not know the `code` of a response with status 400, and then cannot shorten their history.

Source: https://platform.openai.com/docs/api-reference/responses-streaming/response/failed.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.errors.context_overflow import CONTEXT_LENGTH_EXCEEDED, openai_stream_message
from router.core.endpoints.errors.error_envelope import BrokenStream, ErrorEnvelope, openai_body
from router.core.endpoints.recording.sse import payload, split_events
from router.core.endpoints.recording.typed_events import encode_event
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError


class _Event(msgspec.Struct):
    response: dict[str, Any] | None = None
    sequence_number: int | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


def _frame(error: ApiError, stream: BrokenStream) -> bytes:
    """With the event that begins a stream, if none has been sent."""
    if stream.first:
        return _failed(error, stream)
    response = {**_unopened_response(stream), "status": "in_progress", "error": None}
    first = encode_event({"type": "response.created", "sequence_number": 0, "response": response})
    return first + _failed(error, stream._replace(first=first, last=first))


def _failed(error: ApiError, stream: BrokenStream) -> bytes:
    is_overflow = error.code == CONTEXT_LENGTH_EXCEEDED
    message = openai_stream_message(error.message) if is_overflow else error.message
    opened = next((event.response for event in _events(stream.first) if event.response is not None), None)
    numbers = [event.sequence_number for event in _events(stream.last or stream.first)]
    last_number = max((number for number in numbers if number is not None), default=-1)
    response = {
        **(_unopened_response(stream) if opened is None else opened),
        "status": "failed",
        "error": {"code": response_error_code(error), "message": message},
    }
    details = {"message": message, "type": error.kind, "param": error.param, "code": error.code}
    event = {"type": "response.failed", "sequence_number": last_number + 1, "response": response, "error": details}
    return encode_event(event)


def _events(frames: bytes) -> list[_Event]:
    events = []
    for frame in split_events(frames):
        try:
            events.append(_decode_event(payload(frame) or b"{}"))
        except MALFORMED_RESPONSE_ERRORS:
            continue  # the engine's; the client has it as it is
    return events


def _unopened_response(stream: BrokenStream) -> dict[str, Any]:
    """The required fields of a response of which no engine has sent an event."""
    return {
        "id": f"resp_{stream.request_id}", "object": "response", "created_at": stream.now, "model": stream.model,
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": None,
        "top_p": None, "instructions": None, "metadata": {}, "incomplete_details": None, "usage": None,
    }  # fmt: skip


def response_error_code(error: ApiError) -> str:
    """A code of OpenAI's ResponseError, or the engine's word for a request that is at fault."""
    if error.status == 429:
        return "rate_limit_exceeded"
    if error.status >= 500:
        return "server_error"
    return error.code or "invalid_prompt"


RESPONSES_ERRORS: Final = ErrorEnvelope(openai_body, _frame, streamed_codes=(CONTEXT_LENGTH_EXCEEDED,))
