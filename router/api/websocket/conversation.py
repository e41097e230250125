"""The last response of a connection, so that the next turn sends only what is new.

OpenAI's servers keep as much, also of responses with `store: false`. A turn is made whole here, from what was said on
this connection: so each request is complete by itself, is cached as over HTTP, and any engine can answer it.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from router.api.websocket.create_message import CreateMessage, Fields
from router.errors import ApiError, bad_request
from router.net.server.websocket import ByteAllocation

_encode = msgspec.json.Encoder().encode
_NULL: Final = msgspec.Raw(b"null")


class Conversation:
    """- A turn that names the last response has its input after the input and the output of that one.
    - Any other `previous_response_id` is passed on: the engine may know it.
    - What is too large for the memory is forgotten; a turn that names it gets ApiError (400), as from OpenAI.
    """

    def __init__(self, new_allocation: Callable[[], ByteAllocation], max_body: int) -> None:
        """`max_body`: bytes of a request; a longer conversation could not be sent again."""
        self._new_allocation = new_allocation
        self._max_body = max_body
        self._allocation: ByteAllocation | None = None
        self._last_id: str | None = None
        self._items: bytes | None = None  # the last response's input and output, in JSON without the brackets

    def make_whole(self, message: CreateMessage) -> tuple[Fields, bytes]:
        """The fields of the request, and the items of its input."""
        fields = message.fields
        items = _items(fields.get("input", _NULL))
        if message.previous_id is None or message.previous_id != self._last_id:
            return fields, items
        if self._items is None:
            raise bad_request(
                f"Previous response with id '{message.previous_id}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        items = _joined(self._items, items)
        rest = {name: value for name, value in fields.items() if name != "previous_response_id"}
        return {**rest, "input": msgspec.Raw(b"[%b]" % items)}, items

    def remember(self, response_id: str, items: bytes, output: bytes = b"[]") -> None:
        """`items`: of its input. `output`: a list in JSON."""
        # First, since the new one has the old one in it, and both need not fit.
        self.forget()
        self._last_id = response_id
        if len(items) + len(output) > self._max_body:
            return
        items = _joined(items, _items(msgspec.Raw(output)))
        allocation = self._new_allocation()
        if allocation.try_allocate(len(items)):
            self._items, self._allocation = items, allocation
        else:
            allocation.release()

    def forget(self) -> None:
        self._last_id = self._items = None
        if self._allocation is not None:
            self._allocation.release()
            self._allocation = None


def encode_request(fields: Fields) -> bytes:
    return _encode(fields)


def _items(value: msgspec.Raw) -> bytes:
    """Raises ApiError (400) for what is neither a text nor a list."""
    text = bytes(value).strip()
    if text.startswith(b'"'):
        return b'{"type":"message","role":"user","content":%b}' % text
    if text.startswith(b"["):
        return text[1:-1].strip()
    if text == b"null":
        return b""
    raise _invalid_input()


def _joined(before: bytes, after: bytes) -> bytes:
    return b"%b,%b" % (before, after) if before and after else before or after


def _invalid_input() -> ApiError:
    return bad_request("`input` must be a string or a list.", param="input")
