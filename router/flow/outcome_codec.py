"""How a flight ended, as it goes through Redis to those who follow it at other processes."""

import msgspec

from router.core.endpoints.recorded_response import Recording
from router.errors import ApiError
from router.flow.inflight import Flight
from router.flow.result import Landing, lost
from router.shared.stream_writer import MAX_UNSENT


class _End(msgspec.Struct, frozen=True):
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


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_End).decode


def write_end(flight: Flight, landing: Landing) -> bytes:
    """A landing as the last record of the flight's stream.

    An answer of more than MAX_UNSENT bytes does not go through Redis: those who follow begin anew.
    """
    is_stored = not landing.whole and landing.error is None  # already, and others can find it so
    if is_stored or (landing.body is not None and len(landing.body) > MAX_UNSENT):
        landing = lost()
    elif landing.recording is not None and len(landing.recording.body) > MAX_UNSENT:
        landing = msgspec.structs.replace(landing, recording=None)  # streams are whole without it
    recording, error = landing.recording, landing.error
    end = _End(
        landing_body=landing.body,
        body=recording.body if recording is not None and landing.body is None else None,
        kept=recording is not None,
        endings=landing.endings,
        prompt_tokens=landing.prompt_tokens,
        completion_tokens=landing.completion_tokens,
        engine=flight.work.engine,
        stream=recording.stream if recording is not None else None,
    )
    if error is not None:
        end = msgspec.structs.replace(
            end, status=error.status, message=error.message, kind=error.kind, code=error.code, param=error.param,
            retry_after=error.retry_after, raw=error.raw, reason=landing.reason, begun=landing.begun,
        )  # fmt: skip
    return _pack(end)


def read_end(flight: Flight, packed: bytes) -> Landing:
    """The landing of a flight that has said all that came before its last record. Raises msgspec.DecodeError."""
    end = _unpack(packed)
    if end.status != 200:
        error = ApiError(
            end.status, end.message, kind=end.kind, code=end.code, param=end.param, retry_after=end.retry_after,
            raw=end.raw,
        )  # fmt: skip
        return Landing(whole=False, error=error, reason=end.reason, begun=end.begun)
    recording = None
    body = end.landing_body if end.landing_body is not None else end.body
    if end.kept and body is not None:  # up to entry format 1, a stream may have no JSON form here
        recording = Recording(
            body=body,
            stream=end.stream,
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
        )
    return Landing(
        whole=True, body=end.landing_body, recording=recording, endings=end.endings,
        prompt_tokens=end.prompt_tokens, completion_tokens=end.completion_tokens,
    )  # fmt: skip
