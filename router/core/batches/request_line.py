"""A line of a batch's input file: a request, or why it is none.

Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from typing import Final, NamedTuple

import msgspec

MAX_CUSTOM_ID: Final = 512


class RequestLine(NamedTuple):
    """`body`: of the request, JSON as it came. `model`: its field, empty without one."""

    custom_id: str
    body: bytes
    model: str


class BadLine(NamedTuple):
    """Not a request of this batch. `custom_id`: None if it has none."""

    custom_id: str | None
    code: str
    message: str


class _Line(msgspec.Struct):
    custom_id: msgspec.Raw = msgspec.Raw()
    method: msgspec.Raw = msgspec.Raw()
    url: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    background: msgspec.Raw = msgspec.Raw()


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_body: Final = msgspec.json.Decoder(_Body).decode


def is_object(line: bytes) -> bool:
    """Whether a line is a JSON object at all."""
    try:
        _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def parse_line(line: bytes, endpoint: str) -> RequestLine | BadLine:
    """`endpoint`: the path of the batch's endpoint."""
    try:
        fields = _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return BadLine(None, "invalid_json", "The line is not a JSON object.")
    custom_id = _text(fields.custom_id)
    if not custom_id or len(custom_id) > MAX_CUSTOM_ID:
        message = f"The line needs a `custom_id`: a string of 1 to {MAX_CUSTOM_ID} characters."
        return BadLine(None, "missing_custom_id", message)
    if _text(fields.method) != "POST":
        return BadLine(custom_id, "invalid_method", "`method` must be POST.")
    if _text(fields.url) != endpoint:
        return BadLine(custom_id, "invalid_url", f"`url` must be the endpoint of the batch, {endpoint}.")
    body = bytes(fields.body)
    if not body.lstrip().startswith(b"{"):
        return BadLine(custom_id, "missing_body", "The line needs a `body`: the JSON object of the request.")
    try:
        options = _decode_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What is wrong with it, the endpoint says.
        return RequestLine(custom_id, body, "")
    # Each by itself: a field that is invalid for one endpoint has no meaning for another.
    for name, value in (("stream", options.stream), ("background", options.background)):
        if bytes(value) == b"true":
            return BadLine(custom_id, f"unsupported_{name}", f"A request of a batch cannot have `{name}`.")
    return RequestLine(custom_id, body, _text(options.model))


def _text(value: msgspec.Raw) -> str:
    try:
        return _decode_text(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
