"""The messages of errors that the HTTP server detects before a request reaches an endpoint."""

from collections.abc import Mapping
from typing import Final

from router.errors import INTERNAL, INVALID_REQUEST, UNAVAILABLE, ApiError
from router.net.server.errors import ProtocolError

_MESSAGES: Final[Mapping[str, tuple[str, str]]] = {
    "invalid_http": (INVALID_REQUEST, "The request is not valid HTTP."),
    "request_timeout": (INVALID_REQUEST, "The request did not arrive in time."),
    "too_many_requests": (INVALID_REQUEST, "Too many requests wait on this connection."),
    "headers_too_large": (INVALID_REQUEST, "The headers are too large, or too many."),
    "too_many_connections": (UNAVAILABLE, "Too many clients are connected to this router."),
    "internal_error": (INTERNAL, "The router failed; its log has the details."),
}
"""OpenAI's error type and a sentence for a person, by the code of a ProtocolError."""


def render(error: ProtocolError) -> bytes:
    """The body of a protocol error in OpenAI's shape."""
    kind, message = _MESSAGES[error.code]
    return ApiError(error.status, message, kind=kind, code=error.code).body()
