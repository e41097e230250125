"""Whether the events of a template may be read as one event that has the text of all.

Theory. Most of a stream is the same event again and again with another piece of text in it. The JSON answer takes what
stands around the text once, and the pieces joined. To join the pieces as they are written is to do the same in one step
for a run of events instead of for each.

That holds only where the text is all that would be joined: it is a known piece of text of the only choice or block, and
nothing else in the event is a piece of something. What has any other form is read event by event.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.chat_body import JOINED_FIELDS, REPEATED_FIELDS
from router.core.endpoints.sse import payload
from router.core.types import Endpoint

_TEXT_FIELDS: Final = frozenset(("content", "reasoning", "reasoning_content", "text"))
_MESSAGE_TEXT_FIELDS: Final = frozenset(("text", "thinking", "partial_json"))
_CHOICE_ENDPOINTS: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)
_COMPLETIONS: Final = Endpoint.COMPLETIONS  # an Enum looks its members up in Python, each time
_MESSAGES: Final = Endpoint.MESSAGES
_MESSAGE_DELTA_TYPES: Final = ("text_delta", "thinking_delta", "input_json_delta")

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


def may_merge(endpoint: Endpoint, begin: bytes, end: bytes) -> bool:
    """Whether events with this before and after their text, the quotes included, may become one with the text of all.

    No event of an endpoint whose streams nobody joins may.
    """
    around = begin + end
    name_ends = begin.rfind(b'":')
    name = begin[begin.rfind(b'"', 0, name_ends) + 1 : name_ends]
    if around.count(b'"%b"' % name) != 1 or around.find(b'"sequence_number"') >= 0:
        return False  # another text may be at another place, and the numbers of a run differ
    try:
        event = _decode_event(payload(around) or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    holder = _text_container(endpoint, event)
    text = name.decode("ascii", "replace")
    known = _MESSAGE_TEXT_FIELDS if endpoint is _MESSAGES else _TEXT_FIELDS
    if holder is None or text not in known or holder.get(text) != "":
        return False
    del holder[text]
    return _has_no_pieces(holder)


def _text_container(endpoint: Endpoint, event: Any) -> Any:
    """The object that has the text, if all else is no piece of anything: the rest of it is for the caller to check."""
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
    """Whether no field here is a piece of something: an unknown text may be one."""
    for name, value in fields.items():
        kind = type(value)
        if value is not None and (
            name in JOINED_FIELDS or kind is dict or kind is list or (kind is str and name not in REPEATED_FIELDS)
        ):
            return False
    return True
