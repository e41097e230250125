"""References in the input of /v1/responses: `{"type": "item_reference", "id": …}`, in place of an item of an earlier
response. The AI SDK sends them for all items that a model has generated.

Source: https://platform.openai.com/docs/api-reference/responses/create, the item reference of `input`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from router.core.endpoints.conversations.ids import is_storable_id, shown_id
from router.core.endpoints.conversations.items import extend_digest, join_items, list_of, split_items
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError, bad_request

MAX_REFERENCES: Final = 2000
"""In a request. Each is looked up in Redis."""

_PARAM: Final = "input"


class _Item(msgspec.Struct):
    type: Any = None
    id: Any = None


_decode_items = msgspec.json.Decoder(list[_Item]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class OutputItem(NamedTuple):
    """An item that can be referred to. `digest`: of its content; see items.extend_digest."""

    id: str
    text: bytes
    digest: str


def referable_items(output: bytes) -> list[OutputItem]:
    """Those of an output. One without an id, or with an id that is not of the usual form, is left out.

    Raises MALFORMED_RESPONSE_ERRORS.
    """
    texts = split_items(output)
    ids = [item.id for item in _decode_items(list_of(output))]
    return [
        OutputItem(id_, bytes(text), extend_digest("", bytes(text)))
        for id_, text in zip(ids, texts, strict=True)
        if isinstance(id_, str) and is_storable_id(id_)
    ]


def find_references(items: bytes) -> list[str]:
    """The id of each reference, in their order.

    Raises ApiError: 400 if there are too many, 404 for an id that no kept item has.
    """
    found = [id_ for id_ in _reference_ids(items) if id_ is not None]
    if len(found) > MAX_REFERENCES:
        raise bad_request(
            f"`input` has more than {MAX_REFERENCES} references to items.", param=_PARAM, code="too_many_references"
        )
    for id_ in found:
        if not is_storable_id(id_):
            raise item_not_found(id_)
    return found


def resolve_references(items: bytes, found: Mapping[str, bytes]) -> bytes:
    """The items with what is referred to. `found`: by the ids of all references."""
    pairs = zip(_reference_ids(items), split_items(items), strict=True)
    return join_items(*[bytes(text) if id_ is None else found[id_] for id_, text in pairs])


def resolved_size(references: Sequence[str], found: Mapping[str, bytes]) -> int:
    """How many bytes take the place of the references."""
    return sum([len(found[id_]) + 1 for id_ in references])


def item_not_found(id_: str) -> ApiError:
    return ApiError(404, f"Item with id '{shown_id(id_)}' not found.", param=_PARAM, code="item_not_found")


def references_too_large(max_body: int) -> ApiError:
    return ApiError(
        413, f"With the items that it refers to, `input` has more than {max_body} bytes.", param=_PARAM,
        code="body_too_large",
    )  # fmt: skip


def _reference_ids(items: bytes) -> list[str | None]:
    """For each item, the id if it is a reference. What is invalid has none: its engine refuses it."""
    try:
        decoded = _decode_items(list_of(items))
        return [
            item.id if _is_reference(item, text) else None
            for item, text in zip(decoded, split_items(items), strict=True)
        ]
    except MALFORMED_RESPONSE_ERRORS:
        return []


def _is_reference(item: _Item, text: msgspec.Raw) -> bool:
    # The type may be left out: https://github.com/openai/openai-python, ItemReference.
    if not isinstance(item.id, str):
        return False
    return item.type == "item_reference" or (item.type is None and _decode_fields(text).keys() <= {"id", "type"})
