"""Makes the body of a cached response, in the form that a request wants: JSON or a stream."""

from typing import Final, Protocol

import msgspec

from router.core.endpoints.chat_convert import frames_from_body
from router.core.endpoints.messages import frames_from_message
from router.core.endpoints.request import InferenceRequest
from router.core.endpoints.responses import frames_from_response
from router.core.endpoints.sse import DONE
from router.core.endpoints.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
from router.core.types import Endpoint

_STORED_WITH_END: Final = (Endpoint.RESPONSES, Endpoint.MESSAGES)  # their final event is part of the stored stream


class Replayable(Protocol):
    """The fields of types.Entry that replaying needs."""

    @property
    def body(self) -> bytes: ...

    @property
    def stream(self) -> bytes | None: ...


def replay(entry: Replayable, request: InferenceRequest) -> bytes | None:
    """The response in the form that the request wants; None if the entry cannot be converted to it or is damaged."""
    stream = entry.stream
    if not request.stream:
        # The body of a lossy stream is only the text, for people.
        return entry.body if stream is None or is_lossless(stream) else None
    if stream is not None:
        end = b"" if request.endpoint in _STORED_WITH_END else DONE
        try:
            return decode_stream(stream, entry.body, include_usage=request.include_usage, end=end)
        except STREAM_DECODE_ERRORS:
            return None
    try:
        return _convert_to_frames(request, entry.body)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _convert_to_frames(request: InferenceRequest, body: bytes) -> bytes | None:
    match request.endpoint:
        case Endpoint.RESPONSES:
            return frames_from_response(body)
        case Endpoint.MESSAGES:
            return frames_from_message(body)
    return frames_from_body(request.endpoint, body, include_usage=request.include_usage)
