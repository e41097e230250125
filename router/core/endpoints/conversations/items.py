"""The items of a conversation at /v1/responses: JSON, without the brackets of their list.

They stay as the client and the engine wrote them: they are parsed where any request is.
"""

import hashlib
from typing import Any, Final

import msgspec

from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.core.json_values import normalize_numbers
from router.errors import ApiError, bad_request

NULL: Final = msgspec.Raw(b"null")


class _Item(msgspec.Struct):
    type: Any = None
    role: Any = None
    id: Any = None

    @property
    def is_output(self) -> bool:
        return self.role == "assistant" or self.type in ("function_call", "custom_tool_call", "reasoning")

    @property
    def is_reference(self) -> bool:
        return self.type == "item_reference" or (self.type is None and self.role is None and self.id is not None)


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[_Item]).decode
_decode = msgspec.json.Decoder(Any).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_DIGEST_BYTES: Final = 16
_CLIENT_CALLS: Final = frozenset(("function_call", "custom_tool_call"))


def items_of(value: msgspec.Raw) -> bytes:
    """The items of an `input` or an `output`. Raises ApiError (400) for what is neither a text nor a list."""
    text = bytes(value).strip()
    if text.startswith(b'"'):
        return b'{"type":"message","role":"user","content":%b}' % text
    if text.startswith(b"["):
        return text[1:-1].strip()
    if text == b"null":
        return b""
    raise _invalid_input()


def list_of(items: bytes) -> bytes:
    return b"[%b]" % items


def join_items(*parts: bytes) -> bytes:
    return b",".join([part for part in parts if part])


def split_items(items: bytes) -> list[msgspec.Raw]:
    """Raises MALFORMED_RESPONSE_ERRORS."""
    return _split(list_of(items))


def find_history(items: bytes) -> tuple[bool, bool]:
    """Whether something that a model has said is among them, and whether a reference to it may be.

    Both are False if they are not valid.
    """
    try:
        decoded = _decode_items(list_of(items))
    except MALFORMED_RESPONSE_ERRORS:
        return False, False
    return any(item.is_output for item in decoded), any(item.is_reference for item in decoded)


def find_calls(items: bytes) -> tuple[bool, bool]:
    """Whether a call of a tool that an engine runs itself is among them, and whether one that the client runs is.

    Both are False if they are not valid.
    """
    try:
        types = [item.type for item in _decode_items(list_of(items))]
    except MALFORMED_RESPONSE_ERRORS:
        return False, False
    calls = {kind for kind in types if isinstance(kind, str) and kind.endswith("_call")}
    return not calls <= _CLIENT_CALLS, not calls.isdisjoint(_CLIENT_CALLS)


def has_typed_reference(items: bytes) -> bool:
    """Whether a reference with its type may be among them; without parsing them."""
    return b'"item_reference"' in items


def extend_digest(digest: str, items: bytes) -> str:
    """The digest of a conversation, after these items are added. `digest`: the one before them, empty at the beginning.

    It depends on the sequence of items alone: not on the turns that they came in, nor on spaces, the order of fields
    and the form of numbers, on which no cache key depends either. Raises MALFORMED_RESPONSE_ERRORS.
    """
    for item in split_items(items):
        # Its length is fixed, so no other sequence of items gives the same bytes.
        content = hashlib.sha256(_canonical(bytes(item))).digest()
        digest = hashlib.sha256(digest.encode("ascii") + content).digest()[:_DIGEST_BYTES].hex()
    return digest


def _canonical(item: bytes) -> bytes:
    value = [_decode(item)]
    normalize_numbers(value, len(item))
    try:
        return _encode_sorted(value)
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON may have
        return item


def _invalid_input() -> ApiError:
    return bad_request("`input` must be a string or a list.", param="input")
