"""The last response of a connection, so that the next turn sends only what is new.

OpenAI's servers keep as much, also of responses with `store: false`. A turn is made whole here, from what was said on
this connection: so each request is complete by itself, is cached as over HTTP, and any engine can answer it.
"""

from collections.abc import Callable

import msgspec

from router.api.websocket.create_message import CreateMessage, Fields
from router.core.endpoints.conversations.items import NULL, items_of, join_items, list_of
from router.errors import ApiError, bad_request
from router.net.server.websocket import ByteAllocation

_encode = msgspec.json.Encoder().encode


class Conversation:
    """- A turn that names the last response has its input after the input and the output of that one.
    - Any other `previous_response_id` is passed on: the request finds what is stored (router.flow.memory), and without
      that memory its engine may know it.
    - What is too large for the memory is forgotten; a turn that names it gets ApiError (400), as from OpenAI.
    """

    def __init__(self, new_allocation: Callable[[], ByteAllocation], max_body: int) -> None:
        """`max_body`: bytes of a request; a longer conversation could not be sent again."""
        self._new_allocation = new_allocation
        self._max_body = max_body
        self._allocation: ByteAllocation | None = None
        self._last_id: str | None = None
        self._items: bytes | None = None  # the last response's input and output, in JSON without the brackets

    def make_whole(self, message: CreateMessage) -> tuple[Fields, bytes | None]:
        """The fields of the request, and the items of its input; None if what was said before is not known here."""
        fields = message.fields
        items = items_of(fields.get("input", NULL))
        if not message.previous_id:
            return fields, items
        if message.previous_id != self._last_id:
            return fields, None
        if self._items is None:
            raise previous_not_found(message.previous_id)
        items = join_items(self._items, items)
        rest = {name: value for name, value in fields.items() if name != "previous_response_id"}
        return {**rest, "input": msgspec.Raw(list_of(items))}, items

    def remember(self, response_id: str, items: bytes | None, output: bytes = b"[]") -> None:
        """`items`: of its input, see `make_whole`. `output`: a list in JSON."""
        # First, since the new one has the old one in it, and both need not fit.
        self.forget()
        if items is None:
            return
        self._last_id = response_id
        if len(items) + len(output) > self._max_body:
            return
        items = join_items(items, items_of(msgspec.Raw(output)))
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


def previous_not_found(response_id: str) -> ApiError:
    return bad_request(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def encode_request(fields: Fields) -> bytes:
    return _encode(fields)
