"""Decides whether the events of a template may be merged into one event that has the text of all.

Theory. Most of a stream is the same event, again and again, with another piece of text. The JSON form of the response
has the bytes around the text once, and the pieces joined. Joining the pieces before parsing gives the same result in
one step for a run of events, instead of one step for each event.

This holds only if the text is all that would be joined: it is a known text field of the only choice or block, and no
other field of the event has a piece of something. Events of any other form are parsed one by one.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.chat_body import JOINED_FIELDS, REPEATED_FIELDS
from router.core.endpoints.sse import payload
from router.core.types import Endpoint

_TEXT_FIELDS: Final = frozenset(("content", "reasoning", "reasoning_content", "text"))
_MESSAGE_TEXT_FIELDS: Final = frozenset(("text", "thinking", "partial_json"))
_CHOICE_ENDPOINTS: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)
_COMPLETIONS: Final = Endpoint.COMPLETIONS  # looking up a member of an Enum runs Python code each time
_MESSAGES: Final = Endpoint.MESSAGES
_MESSAGE_DELTA_TYPES: Final = ("text_delta", "thinking_delta", "input_json_delta")

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


def may_merge(endpoint: Endpoint, begin: bytes, end: bytes) -> bool:
    """Whether events with these bytes before and after their text, quotes included, may be merged into one.

    False for all events of /v1/responses, whose pieces are not joined.
    """
    empty_event = begin + end  # the event with an empty text
    name_end = begin.rfind(b'":')
    name = begin[begin.rfind(b'"', 0, name_end) + 1 : name_end]
    # If the name occurs twice, the object found below may not be the one that has the text. Sequence numbers differ
    # within a run.
    if empty_event.count(b'"%b"' % name) != 1 or empty_event.find(b'"sequence_number"') >= 0:
        return False
    try:
        event = _decode_event(payload(empty_event) or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    container = _text_container(endpoint, event)
    text_field = name.decode("ascii", "replace")
    known_fields = _MESSAGE_TEXT_FIELDS if endpoint is _MESSAGES else _TEXT_FIELDS
    if container is None or text_field not in known_fields or container.get(text_field) != "":
        return False
    del container[text_field]
    return _has_no_pieces(container)


def _text_container(endpoint: Endpoint, event: Any) -> Any:
    """The object that has the text; None if anything outside of it may be a piece. The caller checks its other fields.

    Takes `event` apart.
    """
    if endpoint is _MESSAGES:
        delta = event.pop("delta", None)
        if type(delta) is not dict or event.pop("type", None) != "content_block_delta":
            return None
        return delta if delta.pop("type", None) in _MESSAGE_DELTA_TYPES and event.keys() == {"index"} else None
    if endpoint not in _CHOICE_ENDPOINTS:
        return None
    choices = event.pop("choices", None)
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    for name, value in event.items():
        if value is not None and (name in JOINED_FIELDS or type(value) is dict or type(value) is list):
            return None
    choice = choices[0]
    if endpoint is _COMPLETIONS:
        return choice
    delta = choice.pop("delta", None)
    return delta if type(delta) is dict and _has_no_pieces(choice) else None


def _has_no_pieces(fields: Any) -> bool:
    """Whether no field has a piece of something. A list, an object or an unknown text may be one."""
    for name, value in fields.items():
        kind = type(value)
        if value is not None and (
            name in JOINED_FIELDS or kind is dict or kind is list or (kind is str and name not in REPEATED_FIELDS)
        ):
            return False
    return True
