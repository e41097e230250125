"""GET /v1/responses/{id}/input_items: a page of the items that a response was made from.

Source: https://platform.openai.com/docs/api-reference/responses/input-items
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from router.errors import bad_request

MAX_LIMIT: Final = 100
_DEFAULT_LIMIT: Final = 20
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_PREFIXES: Final[Mapping[Any, str]] = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
"""Of the ids that items without one get, by type."""

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


def page_of_items(items: list[msgspec.Raw], query: PageQuery) -> dict[str, Any]:
    """Raises ApiError (400) if `after` is no item, and MALFORMED_RESPONSE_ERRORS."""
    listed: list[dict[str, Any]] = []
    ids: set[str] = set()
    for number, item in enumerate(items):
        if bytes(item).startswith(b"{"):
            listed.append(_listed(number, bytes(item), ids))
            ids.add(listed[-1]["id"])
    if query.order == "desc":
        listed.reverse()
    if query.after is not None:
        if query.after not in ids:
            raise bad_request("`after` is the id of no item.", param="after")
        listed = listed[[item["id"] for item in listed].index(query.after) + 1 :]
    page = listed[: query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(listed) > len(page),
    }


def _listed(number: int, text: bytes, taken: set[str]) -> dict[str, Any]:
    """An item as OpenAI lists it. One without an id, or with a `taken` one, gets one that later turns have, too."""
    item = msgspec.json.decode(text, type=dict[str, Any])
    kind, id_ = item.get("type") or "message", item.get("id")
    if not isinstance(id_, str) or not id_ or id_ in taken:
        digest = hashlib.sha256(b"%d:%b" % (number, text)).hexdigest()[:24]
        id_ = f"{_PREFIXES.get(kind, 'item') if isinstance(kind, str) else 'item'}_{digest}"
    listed = {**item, "type": kind, "id": id_}
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        listed["content"] = [_text_part(content, is_output=item.get("role") == "assistant")]
    return listed


def _text_part(text: str, *, is_output: bool) -> dict[str, Any]:
    if is_output:
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
