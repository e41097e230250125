"""How a flight ended, as it goes through Redis to those who follow it at other processes."""

import msgspec

from router.core.endpoints.recorded_response import RecordedResponse
from router.errors import ApiError
from router.flow.inflight import InFlightRequest
from router.flow.result import GenerationResult, lost_result
from router.shared.stream_writer import MAX_UNSENT_BYTES


class _EncodedResult(msgspec.Struct, frozen=True):
    """A landing as it goes through Redis. `body` and `stream` are those of its recording, if that is `kept`.

    While replicas are updated one by one, one of another version reads it. So a field that is added has a default, and
    one that is no longer used is still sent: readers up to entry format 1 require the last two.
    """

    landing_body: bytes | None
    body: bytes | None
    kept: bool
    endings: tuple[bytes, bytes]
    prompt_tokens: int
    completion_tokens: int
    engine: str | None
    status: int = 200
    message: str = ""
    kind: str = ""
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None
    raw: bytes | None = None
    reason: str | None = None
    begun: bool = False
    stream: bytes | None = None
    usage_frame: bytes | None = None
    last_frames: bytes | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_EncodedResult).decode


def encode_result(inflight: InFlightRequest, result: GenerationResult) -> bytes:
    """A landing as the last record of the flight's stream.

    An answer of more than MAX_UNSENT bytes does not go through Redis: those who follow begin anew.
    """
    is_stored = not result.complete and result.error is None  # already, and others can find it so
    if is_stored or (result.body is not None and len(result.body) > MAX_UNSENT_BYTES):
        result = lost_result()
    elif result.recorded_response is not None and len(result.recorded_response.body) > MAX_UNSENT_BYTES:
        result = msgspec.structs.replace(result, recorded_response=None)  # streams are whole without it
    recording, error = result.recorded_response, result.error
    end = _EncodedResult(
        landing_body=result.body,
        body=recording.body if recording is not None and result.body is None else None,
        kept=recording is not None,
        endings=result.endings,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        engine=inflight.record.engine,
        stream=recording.stream if recording is not None else None,
    )
    if error is not None:
        end = msgspec.structs.replace(
            end, status=error.status, message=error.message, kind=error.kind, code=error.code, param=error.param,
            retry_after=error.retry_after, raw=error.raw, reason=result.error_reason, begun=result.had_data,
        )  # fmt: skip
    return _encode(end)


def decode_result(inflight: InFlightRequest, encoded: bytes) -> GenerationResult:
    """The landing of a flight that has said all that came before its last record. Raises msgspec.DecodeError."""
    end = _decode(encoded)
    if end.status != 200:
        error = ApiError(
            end.status, end.message, kind=end.kind, code=end.code, param=end.param, retry_after=end.retry_after,
            raw=end.raw,
        )  # fmt: skip
        return GenerationResult(complete=False, error=error, error_reason=end.reason, had_data=end.begun)
    recording = None
    body = end.landing_body if end.landing_body is not None else end.body
    if end.kept and body is not None:  # up to entry format 1, a stream may have no JSON form here
        recording = RecordedResponse(
            body=body,
            stream=end.stream,
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
        )
    return GenerationResult(
        complete=True, body=end.landing_body, recorded_response=recording, endings=end.endings,
        prompt_tokens=end.prompt_tokens, completion_tokens=end.completion_tokens,
    )  # fmt: skip
