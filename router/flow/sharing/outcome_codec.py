"""Encodes a GenerationResult for followers in other processes, which get it through Redis."""

import msgspec

from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.errors import ApiError
from router.flow.result import GenerationResult, lost_result
from router.shared.inflight.stream_writer import MAX_UNSENT_BYTES


class _EncodedResult(msgspec.Struct, frozen=True):
    """The encoded form. `body` and `stream` are the recorded response's, if there is one (`kept`).

    `begun` is the result's `had_data`. The field names are those that go over the wire. During a rolling update,
    another version reads this. So a new field has a default, and a field that is no longer used is still sent: readers
    up to entry format 1 require the last two.
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
    generation_ms: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_EncodedResult).decode


def encode_result(result: GenerationResult, *, engine: str | None) -> bytes:
    """A result as the last record of the in-flight request's stream. `engine`: the one that generated it.

    A response of more than MAX_UNSENT_BYTES, or one that is private, does not go through Redis: followers get "lost",
    and retry.
    """
    # Stored by another process. Followers also get "lost": they retry, and find the entry.
    is_stored = not result.complete and result.error is None
    if is_stored or result.is_private or (result.body is not None and len(result.body) > MAX_UNSENT_BYTES):
        result = lost_result()
    elif result.recorded_response is not None and len(result.recorded_response.body) > MAX_UNSENT_BYTES:
        # A stream's followers have all frames without it.
        result = msgspec.structs.replace(result, recorded_response=None)
    recorded, error = result.recorded_response, result.error
    encoded = _EncodedResult(
        landing_body=result.body,
        # Not both: for JSON, the recorded body is that of the response.
        body=recorded.body if recorded is not None and result.body is None else None,
        kept=recorded is not None,
        endings=result.endings,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        engine=engine,
        stream=recorded.stream if recorded is not None else None,
        generation_ms=result.generation_ms,
    )
    if error is not None:
        encoded = msgspec.structs.replace(
            encoded, status=error.status, message=error.message, kind=error.kind, code=error.code, param=error.param,
            retry_after=error.retry_after, raw=error.raw, reason=result.error_reason, begun=result.had_data,
        )  # fmt: skip
    return _encode(encoded)


def decode_result(encoded: bytes) -> GenerationResult:
    """The result from the last record of a stream. Raises msgspec.DecodeError."""
    decoded = _decode(encoded)
    if decoded.status != 200:  # 200 is the default, which a result without an error sends
        error = ApiError(
            decoded.status, decoded.message, kind=decoded.kind, code=decoded.code, param=decoded.param,
            retry_after=decoded.retry_after, raw=decoded.raw,
        )  # fmt: skip
        return GenerationResult(complete=False, error=error, error_reason=decoded.reason, had_data=decoded.begun)
    recorded = None
    body = decoded.landing_body if decoded.landing_body is not None else decoded.body
    if decoded.kept and body is not None:  # up to entry format 1, a stream may have no JSON form here
        recorded = RecordedResponse(
            body=body,
            stream=decoded.stream,
            prompt_tokens=decoded.prompt_tokens,
            completion_tokens=decoded.completion_tokens,
        )
    return GenerationResult(
        complete=True, body=decoded.landing_body, recorded_response=recorded, endings=decoded.endings,
        prompt_tokens=decoded.prompt_tokens, completion_tokens=decoded.completion_tokens,
        generation_ms=decoded.generation_ms,
    )  # fmt: skip
