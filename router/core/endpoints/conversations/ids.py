"""Ids of responses and their items, as engines give them and clients send them."""

import re
from typing import Final

_MAX_ID: Final = 128  # characters
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_ID}}}")


def is_storable_id(text: str) -> bool:
    """Whether what has this id can be stored: an engine may give any, and it is a part of a key, or a field."""
    return _ID.fullmatch(text) is not None


def shown_id(text: str) -> str:
    """What a message shows of an id that a client has sent."""
    return text[:_MAX_ID]
