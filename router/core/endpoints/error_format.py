"""How a stream says that it failed."""

from router.core.endpoints.typed_events import encode_event
from router.core.types import Endpoint
from router.errors import ApiError


def error_frame(endpoint: Endpoint, error: ApiError) -> bytes:
    """The event that ends a stream which failed after it had begun; nothing follows it.

    - /v1/messages: Anthropic's `error` event.
    - /v1/responses: OpenAI's `error` event, as its reference has it and with the `error` that it has in fact, on which
      OpenAI's own clients raise. Its `sequence_number` is left out: the router does not count events.
    - the others: `data: {"error": ...}`.
    """
    match endpoint:
        case Endpoint.MESSAGES:
            return encode_event({"type": "error", "error": {"type": error.kind, "message": error.message}})
        case Endpoint.RESPONSES:
            about = {"message": error.message, "code": error.code, "param": error.param}
            return encode_event({"type": "error", **about, "error": {"type": error.kind, **about}})
    return error.frame()
