"""One turn of a conversation: a request to /v1/responses that may continue a stored response."""

import re
from typing import Any, Final, NamedTuple

import msgspec

from router.core.endpoints.conversations.items import NULL, has_output, items_of, list_of
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError

PREVIOUS_ID: Final = "previous_response_id"

_MAX_ID: Final = 128  # characters
_RESPONSE_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_ID}}}")

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Body(msgspec.Struct):
    input: msgspec.Raw = NULL
    previous_response_id: Any = None
    store: Any = None
    background: Any = None
    conversation: Any = None


_decode_body = msgspec.json.Decoder(_Body).decode


class Turn(NamedTuple):
    """`items`: of its input. `previous_id`: None in the first turn. `is_stored`: see docs/wire.md."""

    items: bytes
    previous_id: str | None
    is_stored: bool
    is_background: bool


def is_response_id(text: str) -> bool:
    """Whether a response with this id can be stored: an engine may give any, and it is a part of a key."""
    return _RESPONSE_ID.fullmatch(text) is not None


def shown_id(text: str) -> str:
    """What a message shows of an id that a client has sent."""
    return text[:_MAX_ID]


def parse_turn(body: bytes) -> Turn | None:
    """None for a request that the memory does not change: it is invalid, or about state that only an engine keeps."""
    try:
        fields = _decode_body(body)
        items = items_of(fields.input)
    except (*MALFORMED_RESPONSE_ERRORS, ApiError):
        return None
    previous_id = fields.previous_response_id
    if fields.conversation or not isinstance(previous_id, str | None):
        return None
    is_background = fields.background is True
    # A client that sends its history keeps it itself. All of it would be stored again with each turn.
    keeps_itself = fields.store is None and previous_id is None and not is_background and has_output(items)
    return Turn(items, previous_id, fields.store is not False and not keeps_itself, is_background)


def whole_body(body: bytes, items: bytes) -> bytes:
    """The body of a turn with all items so far as its input, so that it depends on no other request.

    `body`: one that parse_turn has parsed.
    """
    fields = {name: value for name, value in _decode_raw(body).items() if name != PREVIOUS_ID}
    return _encode({**fields, "input": msgspec.Raw(list_of(items))})


def with_previous_id(response: bytes, previous_id: str) -> bytes:
    """A stored response that names the one before it: its engine knew of none. An empty id changes nothing."""
    if not previous_id:
        return response
    return _encode({**_decode_raw(response), PREVIOUS_ID: msgspec.Raw(_encode(previous_id))})
