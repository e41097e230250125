"""The error event of each endpoint's streams."""

from router.core.endpoints.typed_events import encode_event
from router.core.types import Endpoint
from router.errors import ApiError


def error_frame(endpoint: Endpoint, error: ApiError) -> bytes:
    """The event that ends a stream which fails after its first byte; nothing follows it.

    - /v1/messages: Anthropic's `error` event.
    - /v1/responses: OpenAI's `error` event as documented, plus the `error` field that OpenAI sends in practice and on
      which its clients raise. Without `sequence_number`, since the router does not count events.
    - the others: `data: {"error": ...}`.
    """
    match endpoint:
        case Endpoint.MESSAGES:
            return encode_event({"type": "error", "error": {"type": error.kind, "message": error.message}})
        case Endpoint.RESPONSES:
            details = {"message": error.message, "code": error.code, "param": error.param}
            return encode_event({"type": "error", **details, "error": {"type": error.kind, **details}})
    return error.frame()
