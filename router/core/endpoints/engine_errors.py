"""What an engine says against a request itself, as an error in OpenAI's shape for the client whose request it is.

A client's mistake costs that client alone: no breaker counts it, and the same engine is not asked again. The shapes
that are understood: OpenAI's and this vLLM's `{"error": {"message": ...}}`, Anthropic's `{"type": "error", "error":
...}`, vLLM's up to 0.9 `{"object": "error", "message": ...}`, FastAPI's `{"detail": ...}` with a text or a list, and
plain text, as proxies write it.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from router.errors import INVALID_REQUEST, NOT_FOUND, ApiError

MAX_ERROR_BODY: Final = 64 << 10
"""Bytes that are read of an engine's error."""

MAX_MESSAGE: Final = 2000
"""Characters of a message that was taken out of an engine's error."""

_NOT_CLIENT_ERRORS: Final = (
    401, 403, 407,  # the router's own credentials
    408, 425, 429,  # the same request may do at another time
)  # fmt: skip
_NOT_SERVED: Final = (404, 405, 501)  # vLLM: no such model, response or route; a model that cannot do this
_NO_ROUTE_MESSAGES: Final = ("Not Found", "Method Not Allowed")  # Starlette's words

# `message` or `detail` with a text, in a body that is cut off.
_FIRST_MESSAGE: Final = re.compile(
    rb'"(?:message|detail|msg)": ?"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u]){0,%d})' % (2 * MAX_MESSAGE)
)
# vLLM cannot read the error of the chat behind /v1/messages, and shows how that ends.
_INNER_CODE: Final = re.compile(r"'code': (\d{3})\}\}, input_type=dict")


class _EngineMessage(NamedTuple):
    message: str
    kind: str | None = None
    param: str | None = None


def is_refusal(status: int) -> bool:
    """Whether an engine that answers with this status refuses the request itself."""
    return status == 501 or (400 <= status < 500 and status not in _NOT_CLIENT_ERRORS)


def is_not_served(status: int) -> bool:
    """Whether the engine lacks what the request names, so that another engine of the model may have it."""
    return status in _NOT_SERVED


def parse_refusal(status: int, body: bytes, *, complete: bool = True, address: str = "") -> ApiError:
    """The client's error for a refusal with this status.

    `complete`: False where `body` is the beginning of a longer one, or of one that broke off. `address`: the engine's,
    host and port; it does not reach the client. A body in OpenAI's shape goes on as it stands.
    """
    value = _decode_or_none(body) if complete else None
    said = _parse_json_error(value) if value is not None else _parse_text(body)
    raw = body if _is_openai_error(value) and not (address and address.encode() in body) else None
    if status in _NOT_SERVED:
        return _not_served_error(status, said, address, raw)
    return _refusal_error(status, said or _EngineMessage(""), address, raw)


def parse_refusal_event(payload: bytes, address: str = "") -> ApiError | None:
    """The client's error for an error event in a stream with status 200; None where it is a failure of the engine.

    vLLM looks at a good part of a request (grammars, for one) only when it has begun to answer.
    """
    value = _decode_or_none(payload)
    said = _parse_json_error(value)
    if said is None:
        return None
    code = value["error"].get("code") if isinstance(value, dict) and isinstance(value.get("error"), dict) else None
    if inner := _INNER_CODE.search(said.message):
        code, said = int(inner[1]), _EngineMessage("The engine refused the request, and did not say why.")
    if type(code) is not int or not is_refusal(code):
        return None
    return _refusal_error(400 if code in _NOT_SERVED else code, said, address)


def answer_too_large(what: str, limit: int) -> ApiError:
    """The error for an answer of which `what` has more than `limit` bytes. The limit is ours, so nobody has failed."""
    message = (
        f"{what} has more than {limit >> 20} MiB, the most that the router takes; ask for fewer choices, tokens or log "
        "probabilities, or without `echo`."
    )
    return ApiError(400, message, code="answer_too_large")


def _not_served_error(status: int, engine_message: _EngineMessage | None, address: str, raw: bytes | None) -> ApiError:
    if engine_message is not None and engine_message.param == "model":  # it names the model as the engine knows it
        message = "The engines of this model answered that they do not serve it."
        return ApiError(404, message, kind=NOT_FOUND, param="model", code="model_not_found")
    if status == 405 or engine_message is None or engine_message.message in _NO_ROUTE_MESSAGES:
        message = "The engines of this model do not serve this endpoint."
        return ApiError(400 if status == 501 else 404, message, kind=NOT_FOUND, code="unsupported_endpoint")
    return (
        _refusal_error(404, engine_message, address, raw)
        if status == 404
        else _refusal_error(400, engine_message, address)
    )


def _refusal_error(status: int, engine_message: _EngineMessage, address: str, raw: bytes | None = None) -> ApiError:
    message = engine_message.message.replace(address, "the engine") if address else engine_message.message
    kind = engine_message.kind or (NOT_FOUND if status == 404 else INVALID_REQUEST)
    shown = _printable(message) or f"The engine refused the request with status {status}."
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
    """What an error says, in any of the shapes that are known."""
    if not isinstance(value, dict):
        return _EngineMessage(value) if isinstance(value, str) and value else None
    detail = value.get("detail")
    if isinstance(detail, list) and detail:
        return _parse_validation_problems(detail)
    inner = value.get("error")
    about = inner if isinstance(inner, dict) else value
    for message in (about.get("message"), detail, inner):
        if isinstance(message, str) and message:
            kind, param = about.get("type"), about.get("param")
            return _EngineMessage(
                message,
                kind[:256] if isinstance(kind, str) and kind else None,
                param[:256] if isinstance(param, str) else None,
            )
    return None


def _parse_validation_problems(problems: list[Any]) -> _EngineMessage | None:
    """FastAPI's list: each problem has a place, as a list of names and numbers, and a text."""
    lines = []
    first = None
    for problem in problems[:10]:
        text = problem.get("msg") if isinstance(problem, dict) else problem
        if not isinstance(text, str) or not text:
            continue
        place = problem.get("loc") if isinstance(problem, dict) else None
        names = [str(name) for name in place if isinstance(name, str | int)] if isinstance(place, list) else []
        path = ".".join(names[1:] if names[:1] == ["body"] else names)
        lines.append(f"`{path}`: {text}" if path else text)
        first = first or path or None
    return _EngineMessage("; ".join(lines), None, first) if lines else None


def _parse_text(body: bytes) -> _EngineMessage | None:
    """What is said by text that is no JSON, or by JSON that is cut off."""
    found = _FIRST_MESSAGE.search(body[:MAX_ERROR_BODY]) if body[:1] == b"{" else None
    if found is not None:
        written = found[1].decode("utf-8", "ignore").encode()  # it may end within a character
        try:
            return _EngineMessage(msgspec.json.decode(b'"%b"' % written, type=str))
        except msgspec.DecodeError:  # it ends within a pair of surrogates
            return None
    text = body[: 4 * MAX_MESSAGE].decode("utf-8", "replace").strip()
    return _EngineMessage(text) if text and text[0] not in "<{[" else None  # HTML, and JSON that says nothing


def _printable(text: str) -> str:
    """One line that is fit to be shown, of MAX_MESSAGE characters at most."""
    shown = " ".join("".join(one if one.isprintable() else " " for one in text[: 2 * MAX_MESSAGE]).split())
    return shown if len(shown) <= MAX_MESSAGE else shown[: MAX_MESSAGE - 1] + "…"
