"""Makes the body of a cached response, in the form that a request wants: JSON or a stream."""

from typing import Protocol

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS


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
    streaming = request.endpoint.streaming
    assert streaming is not None  # else the request would not be for a stream
    if stream is not None:
        try:
            return decode_stream(stream, entry.body, include_usage=request.include_usage, end=streaming.replay_end)
        except STREAM_DECODE_ERRORS:
            return None
    try:
        return streaming.frames_from_body(entry.body, request.include_usage)
    except MALFORMED_RESPONSE_ERRORS:
        return None
