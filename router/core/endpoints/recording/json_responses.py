"""Reads the JSON response of an engine, which may be an error in spite of its status 200."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import record_json


class JsonResponse(msgspec.Struct):
    """What every response may have; each endpoint adds its own fields in a subclass."""

    error: Any = None


ResponseT = TypeVar("ResponseT", bound=JsonResponse)


def decode_success(decode: Callable[[bytes], ResponseT], body: bytes) -> ResponseT | None:
    """The response; None if it has another form or is an error."""
    try:
        response = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return response if response.error is None else None


def record_success(
    decode: Callable[[bytes], JsonResponse], _: InferenceRequest, body: bytes, limit: int
) -> RecordedResponse | NotStoredReason:
    """What to store of a response that is complete if it can be decoded, and has no token counts."""
    return NotStoredReason.ERROR if decode_success(decode, body) is None else record_json(body, None, limit)
