"""Requests to /v1/responses with `background: true`, and the response objects that the router makes for them.

Source: https://platform.openai.com/docs/guides/background.
"""

from typing import Any, Final, Literal

import msgspec

from router.core.endpoints.conversations.turn import PREVIOUS_ID
from router.core.endpoints.errors.responses_errors import response_error_code
from router.errors import ApiError, bad_request

BACKGROUND: Final = "background"

EndStatus = Literal["failed", "cancelled"]
"""How a response ends that an engine has not ended."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_TRUE: Final = msgspec.Raw(b"true")
_NULL: Final = msgspec.Raw(b"null")
_ECHOED: Final = {
    "instructions": _NULL, "max_output_tokens": _NULL, "metadata": msgspec.Raw(b"{}"),
    "model": msgspec.Raw(b'""'), "parallel_tool_calls": _TRUE, "temperature": _NULL,
    "tool_choice": msgspec.Raw(b'"auto"'), "tools": msgspec.Raw(b"[]"), "top_p": _NULL,
    "text": msgspec.Raw(b'{"format":{"type":"text"}}'), "reasoning": _NULL, "truncation": msgspec.Raw(b'"disabled"'),
    "user": _NULL,
}  # fmt: skip
"""Fields of the request that its response repeats, with what the response has if they are not set."""


def foreground_body(body: bytes) -> bytes:
    """The request as one that is not in the background, for a stream. `body`: one that parse_turn has parsed."""
    return _encode({**{name: value for name, value in _decode(body).items() if name != BACKGROUND}, "stream": _TRUE})


def wants_stream(body: bytes) -> bool:
    return bytes(_decode(body).get("stream", _NULL)) == b"true"


def queued_response(body: bytes, response_id: str, now: float) -> bytes:
    """The response object before there is any of it. `body`: of the request. `now`: seconds since the epoch."""
    asked = _decode(body)
    echoed = {
        name: value if bytes(value := asked.get(name, default)) != b"null" else default
        for name, default in _ECHOED.items()
    }
    own: dict[str, Any] = {
        "id": response_id, "object": "response", "created_at": int(now), "status": "queued", BACKGROUND: True,
        "error": None, "incomplete_details": None, "output": [], "usage": None, "store": True,
        PREVIOUS_ID: asked.get(PREVIOUS_ID, _NULL),
    }  # fmt: skip
    return _encode({**own, **echoed})


def as_background(response: bytes, response_id: str, parent: str) -> bytes:
    """An engine's response object with the id that the client knows, and the response before it.

    Raises MALFORMED_RESPONSE_ERRORS.
    """
    fields: dict[str, Any] = dict(_decode(response))
    fields["id"], fields[BACKGROUND] = response_id, True
    if parent:
        fields[PREVIOUS_ID] = parent
    return _encode(fields)


def ended_response(response: bytes, status: EndStatus, error: ApiError | None = None) -> bytes:
    """The object of a response that ends now with what it has. `error`: why it has failed."""
    fields: dict[str, Any] = {**_decode(response), "status": status}
    if error is not None:
        fields["error"] = {"code": response_error_code(error), "message": error.message}
    return _encode(fields)


def unended_response(response: bytes) -> bytes:
    """The object of a response that has ended, as it was before there was any of it."""
    return _encode({**_decode(response), "status": "in_progress", "error": None, "output": [], "usage": None})


def not_stored_error() -> ApiError:
    return bad_request(
        "`background` needs a response that is kept: `store` must not be false.",
        param=BACKGROUND,
        code="background_not_stored",
    )
