"""The message of an engine's error, whatever its form.

The forms that are parsed: OpenAI's and current vLLM's `{"error": {"message": ...}}`, Anthropic's
`{"type": "error", "error": ...}`, vLLM's up to 0.9 `{"object": "error", "message": ...}`, FastAPI's `{"detail": ...}`
with a text or a list, TGI's `{"error": "text"}`, the `response.failed` of /v1/responses, and plain text of proxies.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

MAX_ERROR_BODY: Final = 64 << 10
"""Bytes that are read of the body of an engine's error."""

MAX_MESSAGE: Final = 2000
"""Characters of a message that is extracted from an engine's error."""

MAX_SUMMARY: Final = 200
"""Characters of a message in a log line, and in the client's error for a failure of the engine."""

_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>]+", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b|\[[0-9a-f:.]{2,}\](?::\d{1,5})?", re.IGNORECASE)
# What providers' keys begin with, and credentials after their scheme.
_SECRET: Final = re.compile(
    r"\b(?:sk|pk|hf|gsk|key|ghp|xai)[-_][A-Za-z0-9_*-]{6,}|\b(?:Bearer|Basic)\s+\S+", re.IGNORECASE
)

# The first text in a field of one of these names, for a body that is truncated and so cannot be decoded.
_FIRST_MESSAGE: Final = re.compile(
    rb'"(?:message|detail|msg)": ?"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u]){0,%d})' % (2 * MAX_MESSAGE)
)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class EngineMessage(NamedTuple):
    """`kind`: OpenAI's `type`. `code`: a word, such as `context_length_exceeded`; not a number."""

    message: str
    kind: str | None = None
    param: str | None = None
    code: str | None = None


def error_object(value: Any) -> dict[str, Any] | None:
    """The object with the message and the words of an error: `error` in most forms, else `value`; None without one."""
    if not isinstance(value, dict):
        return None
    response = value.get("response")
    for holder in (response, value):
        inner = holder.get("error") if isinstance(holder, dict) else None
        if isinstance(inner, dict):
            return inner
    return value


def decode_or_none(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def parse_json_message(value: Any) -> EngineMessage | None:
    if not isinstance(value, dict):
        return EngineMessage(value) if isinstance(value, str) and value else None
    detail = value.get("detail")
    if isinstance(detail, list) and detail:
        return _parse_validation_problems(detail)
    inner = value.get("error")
    error = error_object(value) or value
    for message in (error.get("message"), detail, inner):
        if isinstance(message, str) and message:
            kind, param, code = error.get("type"), error.get("param"), error.get("code")
            kind = None if kind == "error" else kind  # the event's
            return EngineMessage(
                message,
                kind[:256] if isinstance(kind, str) and kind else None,
                param[:256] if isinstance(param, str) else None,
                code if isinstance(code, str) and _WORD.fullmatch(code) else None,
            )
    return None


def _parse_validation_problems(problems: list[Any]) -> EngineMessage | None:
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
    return EngineMessage("; ".join(lines), None, first_path) if lines else None


def parse_text_message(body: bytes) -> EngineMessage | None:
    match = _FIRST_MESSAGE.search(body[:MAX_ERROR_BODY]) if body[:1] == b"{" else None
    if match is not None:
        content = match[1].decode("utf-8", "ignore").encode()  # drops a character that is cut in two at the end
        try:
            return EngineMessage(msgspec.json.decode(b'"%b"' % content, type=str))
        except msgspec.DecodeError:  # a pair of surrogates is cut in two at the end
            return None
    text = body[: 4 * MAX_MESSAGE].decode("utf-8", "replace").strip()
    return EngineMessage(text) if text and text[0] not in "<{[" else None  # not HTML, nor JSON without a message


def printable(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 2 * MAX_MESSAGE]).split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def summary(body: bytes, address: str = "") -> str:
    """The message of an error in one line of at most MAX_SUMMARY characters, for the log; empty if there is none.

    Without URLs, addresses and what looks like a secret. `body`: possibly truncated. `address`: the engine's own.
    """
    value = decode_or_none(body)
    found = parse_json_message(value) if value is not None else parse_text_message(body)
    if found is None:
        return ""
    text = found.message[: 2 * MAX_MESSAGE]
    if address:
        text = text.replace(address, "the engine")
    for pattern, replacement in ((_URL, "(URL)"), (_ADDRESS, "(address)"), (_SECRET, "***")):
        text = pattern.sub(replacement, text)
    line = printable(text)
    return line if len(line) <= MAX_SUMMARY else line[: MAX_SUMMARY - 1] + "…"
