"""GET /v1/responses/{id}/input_items: a page of the items that a response was made from.

Source: https://platform.openai.com/docs/api-reference/responses/input-items
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from router.core.endpoints.conversations.items import join_items, list_of, split_items
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import bad_request

MAX_LIMIT: Final = 100
_DEFAULT_LIMIT: Final = 20
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_PREFIXES: Final[Mapping[Any, str]] = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
"""Of the ids that items without one get, by type."""


class _Id(msgspec.Struct, gc=False):
    id: Any = None


_decode = msgspec.json.Decoder(Any).decode
_decode_ids = msgspec.json.Decoder(list[_Id]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

Order = Literal["asc", "desc"]


class PageQuery(NamedTuple):
    """`after`: the id of the item before the page, in the order of the list; None for its beginning."""

    limit: int = _DEFAULT_LIMIT
    order: Order = "desc"
    after: str | None = None


def parse_page_query(fields: Mapping[str, str]) -> PageQuery:
    """Unknown parameters are ignored, as `include` is. Raises ApiError (400)."""
    limit = fields.get("limit", str(_DEFAULT_LIMIT))
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_LIMIT:
        raise bad_request(f"`limit` must be a number from 1 to {MAX_LIMIT}.", param="limit")
    order = fields.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("`order` must be `asc` or `desc`.", param="order")
    return PageQuery(int(limit), order, fields.get("after"))  # type: ignore[arg-type] # mypy does not narrow a `str`


def list_page(parts: Iterable[bytes], query: PageQuery) -> Generator[None, None, bytes]:
    """The JSON of a page, in steps: other work may be done between, since the items may have megabytes.

    `parts`: items, in their order. Only those on the page are read whole. Raises ApiError (400) if `after` is no item.
    """
    items = _Items()
    for part in parts:
        items.add(part)
        yield
    numbers = range(len(items.ids))
    if query.order == "desc":
        numbers = numbers[::-1]
    if query.after is not None:
        numbers = numbers[numbers.index(items.number_of(query.after)) + 1 :]
    listed: list[msgspec.Raw] = []
    for number in numbers[: query.limit]:
        listed.append(msgspec.Raw(items.listed(number)))
        yield
    return _encode(
        {
            "object": "list",
            "data": listed,
            "first_id": items.id_of(numbers[0]) if listed else None,
            "last_id": items.id_of(numbers[len(listed) - 1]) if listed else None,
            "has_more": len(numbers) > len(listed),
        }
    )


class _Items:
    """Items by their number. `ids`: what each has as its id.

    An item without an id, or with that of one before it, gets one. It has its number, so that it is found again, and
    later turns give it the same.
    """

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self._parts: list[bytes] = []
        self._starts: list[int] = []  # the number of each part's first item
        self._first: dict[str, int] = {}  # of those that have an id, the first with it
        self._split: tuple[int, list[msgspec.Raw]] = (-1, [])  # the part that was read last

    def add(self, part: bytes) -> None:
        """Values that are no objects are left out, as no item is one. Raises MALFORMED_RESPONSE_ERRORS."""
        try:
            ids = [item.id for item in _decode_ids(list_of(part))]
        except MALFORMED_RESPONSE_ERRORS:
            objects = [bytes(item) for item in split_items(part) if bytes(item).startswith(b"{")]
            part, ids = join_items(*objects), [None] * len(objects)
        self._starts.append(len(self.ids))
        self._parts.append(part)
        for number, id_ in enumerate(ids, len(self.ids)):
            if type(id_) is str and id_:
                self._first.setdefault(id_, number)
        self.ids += ids

    def number_of(self, id_: str) -> int:
        """Raises ApiError (400)."""
        number = self._first.get(id_)
        if number is None and (found := _GIVEN_ID.fullmatch(id_)) is not None:
            number = int(found[1], 16)
        if number is None or number >= len(self.ids) or self.id_of(number) != id_:
            raise bad_request("`after` is the id of no item.", param="after")
        return number

    def id_of(self, number: int) -> str:
        own = self.ids[number]
        if type(own) is str and self._first.get(own) == number:
            return own
        text = self._text(number)
        digest = hashlib.sha256(b"%d:%b" % (number, text)).hexdigest()[:16]
        kind = _kind(_decode_fields(text))
        return f"{_PREFIXES.get(kind, 'item') if isinstance(kind, str) else 'item'}_{digest}{number:08x}"

    def listed(self, number: int) -> bytes:
        """An item as OpenAI lists it."""
        fields = _decode_fields(self._text(number))
        kind = _kind(fields)
        listed: dict[str, Any] = {**fields, "type": kind, "id": self.id_of(number)}
        content = bytes(fields.get("content", b""))
        if kind == "message" and content.startswith(b'"'):
            is_output = bytes(fields.get("role", b"")) == b'"assistant"'
            listed["content"] = [msgspec.Raw((_OUTPUT_TEXT if is_output else _INPUT_TEXT) % content)]
        return _encode(listed)

    def _text(self, number: int) -> bytes:
        index = bisect_right(self._starts, number) - 1
        if self._split[0] != index:
            self._split = index, split_items(self._parts[index])
        return bytes(self._split[1][number - self._starts[index]])


def _kind(fields: Mapping[str, msgspec.Raw]) -> Any:
    return _decode(fields.get("type", b"null")) or "message"


_OUTPUT_TEXT: Final = b'{"type":"output_text","text":%b,"annotations":[]}'
_INPUT_TEXT: Final = b'{"type":"input_text","text":%b}'
_GIVEN_ID: Final = re.compile(r"[a-z]+_[0-9a-f]{16}([0-9a-f]{8})")
