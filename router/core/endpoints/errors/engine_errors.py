"""Converts an engine's refusal of a request into an error in OpenAI's shape for the client.

A refusal is the client's mistake, so it affects only that client: no breaker counts it, and the same engine is not
tried again. A refusal may also be in a response with status 200, as its body or as an event: error_status finds the
status that it would have had.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from router.core.endpoints.errors.context_overflow import CONTEXT_LENGTH_EXCEEDED, find_context_overflow
from router.core.endpoints.errors.engine_message import (
    EngineMessage,
    decode_or_none,
    error_object,
    parse_json_message,
    parse_text_message,
    printable,
    summary,
)
from router.core.endpoints.errors.error_status import error_status
from router.core.endpoints.recording.sse import error_payload, payload
from router.errors import INVALID_REQUEST, NOT_FOUND, ApiError

# 4xx that are no refusal of the request.
_NOT_CLIENT_ERRORS: Final = (
    401, 403, 407,  # the engine refuses the router's credentials, not the client's
    408, 425, 429,  # the same request may succeed later
)  # fmt: skip
_FAILED_DEPENDENCY: Final = 424
_NOT_SERVED: Final = (404, 405, 501)  # vLLM: no such model, response or route; a model without this capability
UNSUPPORTED_ENDPOINT: Final = "unsupported_endpoint"
"""The `code` of the error for an engine without the endpoint."""

_NO_ROUTE_MESSAGES: Final = ("Not Found", "Method Not Allowed")  # Starlette's messages for 404 and 405

_UNKNOWN_MODEL: Final = re.compile("The model `[^`]*` does not exist")

# vLLM implements /v1/messages on top of its chat endpoint, but fails to parse that endpoint's errors. The message of
# the resulting validation error contains the original code.
_INNER_CODE: Final = re.compile(r"'code': (\d{3})\}\}, input_type=dict")


def is_refusal(status: int) -> bool:
    """Whether an engine's response with this status means that the request itself is at fault."""
    return status == 501 or (400 <= status < 500 and status not in _NOT_CLIENT_ERRORS)


def is_failed_generation(status: int, body: bytes) -> bool:
    """Whether it is TGI's error for a generation that has failed, which is no refusal although its status is 424."""
    if status != _FAILED_DEPENDENCY:
        return False
    value = decode_or_none(body)
    return isinstance(value, dict) and value.get("error_type") == "generation"


def is_not_served(status: int) -> bool:
    """Whether the engine lacks something that another engine of the model may have."""
    return status in _NOT_SERVED


def parse_refusal(status: int, body: bytes, *, complete: bool = True, address: str = "") -> ApiError:
    """The client's error for a refusal with this status.

    A body in OpenAI's shape is forwarded unchanged, but for the `code` of a request that exceeds the context length.

    `complete`: False if `body` is truncated. `address`: the engine's host and port, which must not reach the client.
    """
    value = decode_or_none(body) if complete else None
    engine_message = parse_json_message(value) if value is not None else parse_text_message(body)
    raw = body if _is_openai_error(value) and not (address and address.encode() in body) else None
    if status in _NOT_SERVED:
        return _not_served_error(status, engine_message, address, raw)
    return _refusal_error(status, engine_message or EngineMessage(""), address, raw)


class ReportedError(NamedTuple):
    """An error in a response with status 200.

    - `status`: the one that it would have had as a response of its own, see error_status.
    - `refusal`: the client's error if the request is at fault; None for a failure of the engine.
    - `summary`: the engine's message in short; see engine_message.summary.
    """

    status: int
    refusal: ApiError | None
    summary: str


def parse_reported_error(payload: bytes, address: str = "") -> ReportedError:
    """The error in an event, or in the body of a response with status 200. `address`: see `parse_refusal`.

    A `code` that is the status as a number is kept for the client.

    vLLM validates part of a request (grammars, for example) only after it has started the response.
    """
    value = decode_or_none(payload)
    message = parse_json_message(value)
    status = error_status(value)
    inner = _INNER_CODE.search(message.message) if message is not None else None
    if inner is not None:
        status, message = int(inner[1]), EngineMessage("The engine rejected the request without a message.")
    short = summary(payload, address) if value is not None else ""
    if not is_refusal(status):
        return ReportedError(status, None, short)
    refused = _refusal_error(400 if status in _NOT_SERVED else status, message or EngineMessage(""), address)
    if inner is None and refused.code is None and _has_number(value, refused.status):
        refused.raw = _body_with_number(refused)
    return ReportedError(status, refused, short)


def is_error_body(body: bytes) -> bool:
    """Whether the body of a response with status 200 reports an error."""
    value = decode_or_none(body)
    return isinstance(value, dict) and is_error_object(value)


def is_error_object(value: dict[str, Any]) -> bool:
    """The same for a decoded object, or the payload of an event."""
    return value.get("error") is not None or "error" in (value.get("type"), value.get("object"))


def unfinished_error(rest: bytes) -> bytes | None:
    """The error in what a stream has after its last complete event; None if it is none, or cut off.

    Some engines answer a streaming request with a JSON error and status 200, or omit the empty line after an event.
    """
    if (reported := error_payload(rest)) is not None:
        return reported if isinstance(decode_or_none(reported), dict) else None
    data = payload(rest) or rest
    return data if is_error_body(data) else None


def answer_too_large(what: str, limit: int) -> ApiError:
    """The error for a response of which `what` has more than `limit` bytes.

    The limit is the router's, so this is no failure of the engine.
    """
    message = (
        f"{what} has more than {limit >> 20} MiB, the router's limit; request fewer choices, tokens or log "
        "probabilities, or without `echo`."
    )
    return ApiError(400, message, code="answer_too_large")


def unsupported_endpoint(model: str, path: str) -> ApiError:
    """The client's error if no engine of a model has the endpoint."""
    message = f"The engines of the model `{model}` do not serve {path}."
    return ApiError(404, message, kind=NOT_FOUND, code=UNSUPPORTED_ENDPOINT)


def _not_served_error(status: int, engine_message: EngineMessage | None, address: str, raw: bytes | None) -> ApiError:
    if engine_message is not None and _is_about_model(engine_message):  # the message has the engine's name of the model
        message = "The engines of this model report that they do not serve it."
        return ApiError(404, message, kind=NOT_FOUND, param="model", code="model_not_found")
    if status == 405 or engine_message is None or engine_message.message in _NO_ROUTE_MESSAGES:
        message = "The engines of this model do not serve this endpoint."
        return ApiError(400 if status == 501 else 404, message, kind=NOT_FOUND, code=UNSUPPORTED_ENDPOINT)
    return (
        _refusal_error(404, engine_message, address, raw)
        if status == 404
        else _refusal_error(400, engine_message, address)
    )


def _is_about_model(engine_message: EngineMessage) -> bool:
    # vLLM's pooling endpoints name no param.
    return engine_message.param == "model" or _UNKNOWN_MODEL.match(engine_message.message) is not None


def _refusal_error(status: int, engine_message: EngineMessage, address: str, raw: bytes | None = None) -> ApiError:
    message = engine_message.message.replace(address, "the engine") if address else engine_message.message
    kind = engine_message.kind or (NOT_FOUND if status == 404 else INVALID_REQUEST)
    shown = printable(message) or f"The engine rejected the request with status {status}."
    code = engine_message.code
    if code is None and find_context_overflow(shown) is not None:
        code, raw = CONTEXT_LENGTH_EXCEEDED, None
    return ApiError(
        status, shown, kind=printable(kind), param=engine_message.param, code=code, raw=raw,
        reason=NOT_FOUND if status == 404 else INVALID_REQUEST,  # a label of metrics, so none of the engine's words
    )  # fmt: skip


def _has_number(value: Any, status: int) -> bool:
    error = error_object(value)
    return error is not None and type(error.get("code")) is int and error["code"] == status


def _body_with_number(refused: ApiError) -> bytes:
    """The body with the status as `code`, as vLLM writes it where the error is no response with status 200."""
    error = {"message": refused.message, "type": refused.kind, "param": refused.param, "code": refused.status}
    return msgspec.json.encode({"error": error})


def _is_openai_error(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("type") == "error":
        return False
    inner = value.get("error")
    return isinstance(inner, dict) and isinstance(inner.get("message"), str)
