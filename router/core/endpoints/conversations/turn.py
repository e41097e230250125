"""One turn of a conversation: a request to /v1/responses that may continue a stored response."""

from typing import Any, Final, Literal, NamedTuple

import msgspec

from router.core.endpoints.conversations.item_references import find_references
from router.core.endpoints.conversations.items import NULL, find_history, has_typed_reference, items_of, list_of
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.core.endpoints.requests.server_state import CLIENT_TOOL_TYPES
from router.errors import ApiError, bad_request

PREVIOUS_ID: Final = "previous_response_id"

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Body(msgspec.Struct):
    input: msgspec.Raw = NULL
    previous_response_id: Any = None
    store: Any = None
    background: Any = None
    conversation: Any = None
    tools: msgspec.Raw = NULL
    request_id: Any = None


class _Tool(msgspec.Struct):
    type: Any = None


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode


Kept = Literal["turn", "output", "nothing"]
"""What is kept of a response: all that later turns need to continue it, the items of its output alone, or nothing."""


class Turn(NamedTuple):
    """`items`: of its input. `previous_id`: None in the first turn. `kept`: see docs/wire.md.

    `references`: the ids of the items that it refers to, in their order. `has_server_tools`: whether its engine may run
    tools itself. `has_own_id`: whether its client has chosen the id of the response.
    """

    items: bytes
    previous_id: str | None
    kept: Kept
    is_background: bool
    references: tuple[str, ...] = ()
    has_server_tools: bool = False
    has_own_id: bool = False


def parse_turn(body: bytes, *, is_kept_by_default: bool = True) -> Turn | None:
    """None for a request that the memory does not change: it is invalid, or about state that only an engine keeps.

    `is_kept_by_default`: whether its response is kept without `store`, too.
    Raises ApiError for references that are too many, or cannot be found; and for a conversation that is named twice.
    """
    try:
        fields = _decode_body(body)
        items = items_of(fields.input)
    except (*MALFORMED_RESPONSE_ERRORS, ApiError):
        return None
    previous_id = fields.previous_response_id
    if fields.conversation and previous_id is not None:
        # As at OpenAI. Engines know no tenants, and would continue what is another tenant's.
        raise bad_request(f"`{PREVIOUS_ID}` cannot be used with `conversation`.", param=PREVIOUS_ID)
    if fields.conversation or not isinstance(previous_id, str | None):
        return None
    is_background = fields.background is True
    kept: Kept = "turn"
    if fields.store is False:
        # Such a client sends all that was said itself, so that its items are not parsed for a reference without a type.
        kept, may_refer = "nothing", has_typed_reference(items)
    else:
        is_history, may_refer = find_history(items)
        if fields.store is None and previous_id is None and not is_background and (is_history or may_refer):
            # A client that sends its history: all of it would be stored again with each turn.
            kept = "output"
    if fields.store is None and not is_kept_by_default and not is_background:
        kept = "nothing"
    references = tuple(find_references(items)) if may_refer else ()
    has_own_id = fields.request_id is not None
    return Turn(items, previous_id, kept, is_background, references, _has_server_tools(fields.tools), has_own_id)


def _has_server_tools(tools: msgspec.Raw) -> bool:
    try:
        return any(tool.type not in CLIENT_TOOL_TYPES for tool in _decode_tools(tools) or ())
    except MALFORMED_RESPONSE_ERRORS:  # the request is refused
        return False


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
