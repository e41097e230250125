"""The messages of errors that the HTTP server detects before a request reaches an endpoint."""

from collections.abc import Mapping
from typing import Final

from router.errors import INTERNAL, INVALID_REQUEST, UNAVAILABLE, ApiError
from router.net.server.errors import ProtocolError

_MESSAGES: Final[Mapping[str, tuple[str, str]]] = {
    "invalid_http": (INVALID_REQUEST, "The request is not valid HTTP."),
    "request_timeout": (INVALID_REQUEST, "Timeout while receiving the request."),
    "too_many_requests": (INVALID_REQUEST, "Too many pipelined requests on this connection."),
    "headers_too_large": (INVALID_REQUEST, "The request headers are too large or too many."),
    "too_many_connections": (UNAVAILABLE, "The router has reached its connection limit."),
    "internal_error": (INTERNAL, "Internal error in the router; see its log."),
}
"""OpenAI's error type and a sentence for a person, by the code of a ProtocolError."""


def render(error: ProtocolError) -> bytes:
    """The body of a protocol error in OpenAI's shape."""
    kind, message = _MESSAGES[error.code]
    return ApiError(error.status, message, kind=kind, code=error.code).body()
