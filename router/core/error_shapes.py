"""Errors on the wire: how a stream says that it failed, and what an engine's refusal says."""

from typing import Final

import msgspec

from router.core.typed_events import frame
from router.core.types import Endpoint
from router.errors import INVALID_REQUEST, ApiError


def error_frame(endpoint: Endpoint, error: ApiError) -> bytes:
    """The event that ends a stream which failed after it had begun; nothing follows it.

    - /v1/messages: Anthropic's `error` event.
    - /v1/responses: OpenAI's `error` event, as its reference has it and with the `error` that it has in fact, on which
      OpenAI's own clients raise. Its `sequence_number` is left out: the router does not count events.
    - the others: `data: {"error": ...}`.
    """
    match endpoint:
        case Endpoint.MESSAGES:
            return frame({"type": "error", "error": {"type": error.kind, "message": error.message}})
        case Endpoint.RESPONSES:
            about = {"message": error.message, "code": error.code, "param": error.param}
            return frame({"type": "error", **about, "error": {"type": error.kind, **about}})
    return error.frame()


_CLIENTS_FAULT: Final = (400, 413, 422)  # what these say is for the client; other 4xx are between router and engine


class _Error(msgspec.Struct):
    message: str = ""
    type: str = ""
    param: str | None = None


class _Refusal(msgspec.Struct):
    error: msgspec.Raw
    type: str = ""


_refusal = msgspec.json.Decoder(_Refusal).decode
_error = msgspec.json.Decoder(_Error).decode


def engine_refusal(status: int, body: bytes) -> ApiError | None:
    """What an engine says of the request itself, for the client; None where it is something else that it says.

    It goes on as it stands where it has OpenAI's shape. vLLM gives what it refuses of /v1/messages Anthropic's shape.
    Of what an engine cannot find, only an earlier response is the client's business.
    """
    if status not in _CLIENTS_FAULT and status != 404:
        return None
    try:
        refusal = _refusal(body)
        said = _error(refusal.error) if status == 404 or refusal.type == "error" else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if status == 404 and (said is None or said.param != "response_id"):
        return None
    if said is None or refusal.type != "error":
        return ApiError(status, "the engine refused the request", raw=body)
    return ApiError(status, said.message, kind=said.type or INVALID_REQUEST)
