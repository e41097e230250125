"""The messages of a client: `response.create`, with the fields of a request to /v1/responses beside its own.

Values stay as the client wrote them: they are parsed where a request over HTTP is.

Source: https://developers.openai.com/api/docs/guides/websocket-mode, and the client of Codex
(codex-api/src/endpoint/responses_websocket.rs).
"""

from typing import Final, NamedTuple

import msgspec

from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError, bad_request

Fields = dict[str, msgspec.Raw]


class _ErrorBody(msgspec.Struct):
    error: dict[str, msgspec.Raw]


_decode_error = msgspec.json.Decoder(_ErrorBody).decode
_decode_fields = msgspec.json.Decoder(Fields).decode
_NULL: Final = b"null"
_TRUE: Final = msgspec.Raw(b"true")

_OWN_FIELDS: Final = ("type", "generate", "client_metadata")
"""Left out of the request: the last has what Codex sends as headers over HTTP, different in each turn."""

_MAX_MODEL: Final = 1024  # bytes of JSON; such a message gets its model back
_ACKNOWLEDGEMENT: Final = "response.processed"
"""Codex sends it after each response; it asks for nothing."""


class CreateMessage(NamedTuple):
    """`fields`: of the request. `generates`: False if the client only prepares a later turn."""

    fields: Fields
    previous_id: str | None
    generates: bool


def parse_message(text: bytes) -> CreateMessage | None:
    """None for a message that asks for nothing. Raises ApiError (400)."""
    try:
        fields = _decode_fields(text)
        kind = _decode_text(fields.get("type"))
        previous_id = _decode_text(fields.get("previous_response_id"))
    except MALFORMED_RESPONSE_ERRORS:
        raise bad_request("A message must be a JSON object with a `type`.", code="invalid_message") from None
    if kind == _ACKNOWLEDGEMENT:
        return None
    if kind != "response.create":
        raise bad_request("The `type` of a message must be `response.create`.", param="type", code="invalid_message")
    if bytes(fields.get("stream_id", _NULL)) != _NULL:
        raise bad_request(
            "A connection has one stream; open another one for more.", param="stream_id", code="invalid_message"
        )
    # Only false: a client that sends null has not set it.
    generates = bytes(fields.get("generate", _TRUE)) != b"false"
    request = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    return CreateMessage({**request, "stream": _TRUE}, previous_id, generates)


def read_model(message: CreateMessage) -> str | None:
    """The `model` of a message that generates nothing: no engine sees it. Raises ApiError (400)."""
    raw = message.fields.get("model")
    if raw is not None and len(bytes(raw)) > _MAX_MODEL:
        raise _invalid_model()
    try:
        return _decode_text(raw)
    except MALFORMED_RESPONSE_ERRORS:
        raise _invalid_model() from None


def _invalid_model() -> ApiError:
    return bad_request(f"`model` must be a string of at most {_MAX_MODEL} bytes.", param="model")


def _decode_text(value: msgspec.Raw | None) -> str | None:
    return None if value is None else msgspec.json.decode(value, type=str | None)


def error_message(status: int, body: bytes, headers: dict[str, str]) -> bytes:
    """What an error response over HTTP is here. `body`: in OpenAI's shape."""
    try:
        error = _decode_error(body).error
    except MALFORMED_RESPONSE_ERRORS:  # an engine's own
        error = _decode_error(ApiError(status, "The request has failed.").body()).error
    return msgspec.json.encode({"type": "error", "status": status, "error": error, "headers": headers})
