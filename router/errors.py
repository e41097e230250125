"""Errors in the shape of OpenAI's API. An endpoint of another API has a form of its own: see error_envelope.

Source: https://platform.openai.com/docs/guides/error-codes; vLLM's `ErrorResponse` has the same fields.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

_encode = msgspec.json.Encoder().encode

INVALID_REQUEST: Final = "invalid_request_error"
AUTHENTICATION: Final = "authentication_error"
PERMISSION: Final = "permission_error"
NOT_FOUND: Final = "not_found_error"
RATE_LIMIT: Final = "rate_limit_error"
UNAVAILABLE: Final = "service_unavailable_error"
UPSTREAM: Final = "upstream_error"
INTERNAL: Final = "internal_error"

NO_ENGINE: Final = "no_engine"
"""The code of the error for a model whose engines cannot be reached."""

ENGINE_FAILED: Final = "engine_failed"
"""The code of the error for a request whose last attempt failed at its engine."""

ENGINE_LOST: Final = "engine_lost"
"""The code of the error for a request with which several engines have ended. Its client is asked not to repeat it."""

MAX_TTFT_EXCEEDED: Final = "max_ttft_exceeded"
"""The code of the error for a request that no engine is expected to answer in the time that it allows."""

NOT_CACHED: Final = "not_cached"
"""The code of a request that wanted a stored response only, and there is none."""

CIRCUIT_OPEN: Final = "circuit_open"
"""The code of the error for a model whose engines' breakers let no request pass."""


class ApiError(Exception):
    """A refusal or a failure that the client sees.

    - `status`: the HTTP status.
    - `message`: one or two sentences for a person; never a traceback, a secret or an internal address.
    - `kind`: OpenAI's `type`, one of the constants above.
    - `param`: the request field that caused the error, if there is one.
    - `code`: an identifier for programs, if there is one.
    - `retry_after`: seconds for `Retry-After`; set on every 429 and 503.
    - `raw`: the body of an engine's own error, which is passed on unchanged.
    - `reason`: an identifier for logs and metrics; the code, unless that is too general.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        raw: bytes | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.raw = raw
        self.reason = reason or code or kind

    def body(self) -> bytes:
        return self.raw if self.raw is not None else _encode(self._error_object())

    def frame(self) -> bytes:
        """The event that ends a stream after a failure; no `[DONE]` follows it."""
        raw = self.raw
        # As it is only where it is one line, as an event needs it.
        body = raw if raw is not None and b"\n" not in raw and b"\r" not in raw else _encode(self._error_object())
        return b"data: %b\n\n" % body

    def _error_object(self) -> Mapping[str, Mapping[str, str | None]]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unknown_model(name: str, *, reason: str | None = None) -> ApiError:
    """Also for a model that a tenant may not use; `reason` tells the operator so, and the client does not learn it."""
    return ApiError(
        404,
        f"The model `{name}` does not exist or you do not have access to it; "
        "GET /v1/models lists the available models.",
        kind=NOT_FOUND,
        param="model",
        code="model_not_found",
        reason=reason,
    )


def unavailable(message: str, *, retry_after: int = 1, code: str | None = None) -> ApiError:
    """Nothing can take the request at present: status 503, with Retry-After."""
    return ApiError(503, message, kind=UNAVAILABLE, code=code, retry_after=retry_after)


def not_cached() -> ApiError:
    """The client asked for a stored response only: status 504 (RFC 9111, section 5.2.1.7)."""
    return ApiError(504, "The cache has no usable entry for this request.", kind=NOT_FOUND, code=NOT_CACHED)


def internal_error() -> ApiError:
    """A bug in the router: status 500, without details."""
    return ApiError(500, "Internal error in the router; see its log.", kind=INTERNAL, code="internal_error")
