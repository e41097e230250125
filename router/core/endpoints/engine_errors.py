"""Converts an engine's refusal of a request into an error in OpenAI's shape for the client.

A refusal is the client's mistake, so it affects only that client: no breaker counts it, and the same engine is not
tried again. The shapes that are parsed: OpenAI's and current vLLM's `{"error": {"message": ...}}`, Anthropic's
`{"type": "error", "error": ...}`, vLLM's up to 0.9 `{"object": "error", "message": ...}`, FastAPI's `{"detail": ...}`
with a text or a list, and plain text, as proxies send it.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from router.errors import INVALID_REQUEST, NOT_FOUND, ApiError

MAX_ERROR_BODY: Final = 64 << 10
"""Bytes that are read of the body of an engine's error."""

MAX_MESSAGE: Final = 2000
"""Characters of a message that is extracted from an engine's error."""

# 4xx that are no refusal of the request.
_NOT_CLIENT_ERRORS: Final = (
    401, 403, 407,  # the engine refuses the router's credentials, not the client's
    408, 425, 429,  # the same request may succeed later
)  # fmt: skip
_NOT_SERVED: Final = (404, 405, 501)  # vLLM: no such model, response or route; a model without this capability
UNSUPPORTED_ENDPOINT: Final = "unsupported_endpoint"
"""The `code` of the error for an engine without the endpoint."""

_NO_ROUTE_MESSAGES: Final = ("Not Found", "Method Not Allowed")  # Starlette's messages for 404 and 405

_UNKNOWN_MODEL: Final = re.compile("The model `[^`]*` does not exist")

# The first text in a field of one of these names, for a body that is truncated and so cannot be decoded.
_FIRST_MESSAGE: Final = re.compile(
    rb'"(?:message|detail|msg)": ?"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u]){0,%d})' % (2 * MAX_MESSAGE)
)
# vLLM implements /v1/messages on top of its chat endpoint, but fails to parse that endpoint's errors. The message of
# the resulting validation error contains the original code.
_INNER_CODE: Final = re.compile(r"'code': (\d{3})\}\}, input_type=dict")


class _EngineMessage(NamedTuple):
    message: str
    kind: str | None = None
    param: str | None = None


def is_refusal(status: int) -> bool:
    """Whether an engine's response with this status means that the request itself is at fault."""
    return status == 501 or (400 <= status < 500 and status not in _NOT_CLIENT_ERRORS)


def is_not_served(status: int) -> bool:
    """Whether the engine lacks something that another engine of the model may have."""
    return status in _NOT_SERVED


def parse_refusal(status: int, body: bytes, *, complete: bool = True, address: str = "") -> ApiError:
    """The client's error for a refusal with this status. A body in OpenAI's shape is forwarded unchanged.

    `complete`: False if `body` is truncated. `address`: the engine's host and port, which must not reach the client.
    """
    value = _decode_or_none(body) if complete else None
    engine_message = _parse_json_error(value) if value is not None else _parse_text(body)
    raw = body if _is_openai_error(value) and not (address and address.encode() in body) else None
    if status in _NOT_SERVED:
        return _not_served_error(status, engine_message, address, raw)
    return _refusal_error(status, engine_message or _EngineMessage(""), address, raw)


def parse_refusal_event(payload: bytes, address: str = "") -> ApiError | None:
    """The client's error for an error event in a stream with status 200; None if it is a failure of the engine.

    vLLM validates part of a request (grammars, for example) only after it has started the response.
    """
    value = _decode_or_none(payload)
    engine_message = _parse_json_error(value)
    if engine_message is None:
        return None
    code = value["error"].get("code") if isinstance(value, dict) and isinstance(value.get("error"), dict) else None
    if inner := _INNER_CODE.search(engine_message.message):
        code, engine_message = int(inner[1]), _EngineMessage("The engine rejected the request without a message.")
    if type(code) is not int or not is_refusal(code):
        return None
    return _refusal_error(400 if code in _NOT_SERVED else code, engine_message, address)


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


def _not_served_error(status: int, engine_message: _EngineMessage | None, address: str, raw: bytes | None) -> ApiError:
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


def _is_about_model(engine_message: _EngineMessage) -> bool:
    # vLLM's pooling endpoints name no param.
    return engine_message.param == "model" or _UNKNOWN_MODEL.match(engine_message.message) is not None


def _refusal_error(status: int, engine_message: _EngineMessage, address: str, raw: bytes | None = None) -> ApiError:
    message = engine_message.message.replace(address, "the engine") if address else engine_message.message
    kind = engine_message.kind or (NOT_FOUND if status == 404 else INVALID_REQUEST)
    shown = _printable(message) or f"The engine rejected the request with status {status}."
    return ApiError(status, shown, kind=_printable(kind), param=engine_message.param, raw=raw)


def _decode_or_none(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_openai_error(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("type") == "error":
        return False
    inner = value.get("error")
    return isinstance(inner, dict) and isinstance(inner.get("message"), str)


def _parse_json_error(value: Any) -> _EngineMessage | None:
    if not isinstance(value, dict):
        return _EngineMessage(value) if isinstance(value, str) and value else None
    detail = value.get("detail")
    if isinstance(detail, list) and detail:
        return _parse_validation_problems(detail)
    inner = value.get("error")
    error = inner if isinstance(inner, dict) else value
    for message in (error.get("message"), detail, inner):
        if isinstance(message, str) and message:
            kind, param = error.get("type"), error.get("param")
            return _EngineMessage(
                message,
                kind[:256] if isinstance(kind, str) and kind else None,
                param[:256] if isinstance(param, str) else None,
            )
    return None


def _parse_validation_problems(problems: list[Any]) -> _EngineMessage | None:
    # FastAPI's list: each problem has a text, `msg`, and a path, `loc`, as a list of names and numbers.
    lines = []
    first_path = None
    for problem in problems[:10]:
        text = problem.get("msg") if isinstance(problem, dict) else problem
        if not isinstance(text, str) or not text:
            continue
        loc = problem.get("loc") if isinstance(problem, dict) else None
        names = [str(name) for name in loc if isinstance(name, str | int)] if isinstance(loc, list) else []
        path = ".".join(names[1:] if names[:1] == ["body"] else names)
        lines.append(f"`{path}`: {text}" if path else text)
        first_path = first_path or path or None
    return _EngineMessage("; ".join(lines), None, first_path) if lines else None


def _parse_text(body: bytes) -> _EngineMessage | None:
    match = _FIRST_MESSAGE.search(body[:MAX_ERROR_BODY]) if body[:1] == b"{" else None
    if match is not None:
        content = match[1].decode("utf-8", "ignore").encode()  # drops a character that is cut in two at the end
        try:
            return _EngineMessage(msgspec.json.decode(b'"%b"' % content, type=str))
        except msgspec.DecodeError:  # a pair of surrogates is cut in two at the end
            return None
    text = body[: 4 * MAX_MESSAGE].decode("utf-8", "replace").strip()
    return _EngineMessage(text) if text and text[0] not in "<{[" else None  # not HTML, nor JSON without a message


def _printable(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 2 * MAX_MESSAGE]).split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
