"""The errors of Anthropic's API: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

Source: https://docs.anthropic.com/en/api/errors.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.errors.context_overflow import CONTEXT_LENGTH_EXCEEDED, anthropic_message
from router.core.endpoints.errors.error_envelope import BrokenStream, ErrorEnvelope
from router.core.endpoints.recording.typed_events import encode_event
from router.errors import ApiError

_encode = msgspec.json.Encoder().encode

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type(status: int) -> str:
    """The type of an error with this status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _error_object(error: ApiError, request_id: str) -> dict[str, Any]:
    message = anthropic_message(error.message) if error.code == CONTEXT_LENGTH_EXCEEDED else error.message
    details = {"type": error_type(error.status), "message": message}
    return {"type": "error", "error": details, "request_id": request_id}


def _body(error: ApiError, request_id: str) -> bytes:
    return _encode(_error_object(error, request_id))


def _frame(error: ApiError, stream: BrokenStream) -> bytes:
    return encode_event(_error_object(error, stream.request_id))


ANTHROPIC_ERRORS: Final = ErrorEnvelope(_body, _frame)
