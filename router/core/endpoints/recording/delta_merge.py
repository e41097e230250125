"""Decides whether the events of a template may be merged into one event that has the text of all.

Theory. Most of a stream is the same event, again and again, with another piece of text. The JSON form of the response
has the bytes around the text once, and the pieces joined. Joining the pieces before parsing gives the same result in
one step for a run of events, instead of one step for each event.

This holds only if the text is all that would be joined: it is a known text field of the only choice or block, and no
other field of the event has a piece of something. Events of any other form are parsed one by one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.recording.sse import payload

JOINED_FIELDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("content", "refusal", "reasoning", "reasoning_content", "text", "arguments"), str),
    **dict.fromkeys(("token_ids", "annotations"), list),
}
"""Fields whose pieces are joined, and the type of the pieces."""

REPEATED_FIELDS: Final = frozenset(
    ("role", "id", "type", "name", "index", "object", "finish_reason", "stop_reason", "native_finish_reason")
)
"""Fields of a choice, a message or a call that some engines repeat in each event. They are never pieces."""

FindContainer = Callable[[Any], Any]
"""The object of an event (a dict) that has the text; None if anything outside of the object may be a piece.

It takes the event apart. The object's other fields are checked by the caller.
"""

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


def may_merge(begin: bytes, end: bytes, text_fields: frozenset[str], find_container: FindContainer) -> bool:
    """Whether events with these bytes before and after their text, quotes included, may be merged into one.

    `text_fields`: the names of the fields whose texts are joined.
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
    container = find_container(event)
    text_field = name.decode("ascii", "replace")
    if container is None or text_field not in text_fields or container.get(text_field) != "":
        return False
    del container[text_field]
    return has_no_pieces(container)


def has_no_pieces(fields: Any) -> bool:
    """Whether no field has a piece of something. A list, an object or an unknown text may be one."""
    for name, value in fields.items():
        kind = type(value)
        if value is not None and (
            name in JOINED_FIELDS or kind is dict or kind is list or (kind is str and name not in REPEATED_FIELDS)
        ):
            return False
    return True
