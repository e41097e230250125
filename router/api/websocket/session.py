"""A connection of a client that has been let in: one `response.create` after the other, until one side ends it."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from router.api.inference.endpoint import AsgiScope
from router.api.websocket.conversation import Conversation, encode_request, previous_not_found
from router.api.websocket.create_message import CreateMessage, error_message, parse_message, read_model
from router.api.websocket.event_messages import prepare_response
from router.api.websocket.inner_request import Application, InnerRequest
from router.errors import ApiError
from router.flow.exchange import new_request_id
from router.net.server.websocket import GOING_AWAY, NORMAL_CLOSURE, WebSocketConnection

IDLE_TIMEOUT: Final = 600.0
"""Seconds without a message from a client, after which its connection closes."""

MAX_AGE: Final = 3600.0
"""Seconds after which a connection takes no more messages, as at OpenAI. So clients spread over all routers again."""

_TOO_OLD: Final = ApiError(
    400,
    "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue.",
    code="websocket_connection_limit_reached",
)


class Session:
    """Messages are answered one after the other; those that come meanwhile wait."""

    def __init__(
        self, application: Application, handshake: AsgiScope, conversation: Conversation,
        is_draining: Callable[[], bool], *, idle_timeout: float = IDLE_TIMEOUT, max_age: float = MAX_AGE,
    ) -> None:  # fmt: skip
        """`application`: it gets the requests. `handshake`: the scope of the request that opened the connection."""
        self._application = application
        self._handshake = handshake
        self._conversation = conversation
        self._is_draining = is_draining
        self._idle_timeout = idle_timeout
        self._max_age = max_age

    async def serve(self, connection: WebSocketConnection) -> None:
        ends_at = time.monotonic() + self._max_age
        try:
            while (text := await self._receive(connection, ends_at)) is not None:
                await self._answer(connection, text)
                await connection.drain()  # else a client that reads nothing fills the memory with answers
                if self._is_draining():
                    connection.close(GOING_AWAY, "the router is shutting down")
                    return
        finally:
            self._conversation.forget()

    async def _receive(self, connection: WebSocketConnection, ends_at: float) -> bytes | None:
        """The next message; None at the end of the connection, which has been closed if it is idle or old."""
        left = ends_at - time.monotonic()
        is_last = left <= self._idle_timeout
        try:
            async with asyncio.timeout(left if is_last else self._idle_timeout):
                message = await connection.receive()
        except TimeoutError:
            if is_last:
                _send_error(connection, _TOO_OLD)
            connection.close(NORMAL_CLOSURE, "too old" if is_last else "idle")
            return None
        if message is None:
            return None
        message.allocation.release()  # the request will have an allocation of its own
        return message.text

    async def _answer(self, connection: WebSocketConnection, text: bytes) -> None:
        try:
            message = parse_message(text)
            if message is None:
                return
            fields, items = self._conversation.make_whole(message)
            if not message.generates:
                self._prepare(connection, message, items)
                return
        except ApiError as error:
            _send_error(connection, error)
            return
        request = InnerRequest(connection, encode_request(fields))
        del fields
        await request.run(self._application, self._handshake)
        if request.final is not None:
            self._conversation.remember(request.final.id, items, bytes(request.final.output))

    def _prepare(self, connection: WebSocketConnection, message: CreateMessage, items: bytes | None) -> None:
        """Raises ApiError (400)."""
        if items is None:  # a later turn would be without what was said before
            raise previous_not_found(message.previous_id or "")
        response_id, messages = prepare_response(f"resp_{new_request_id()}", read_model(message))
        self._conversation.remember(response_id, items)
        connection.send(messages)


def _send_error(connection: WebSocketConnection, error: ApiError) -> None:
    connection.send([error_message(error.status, error.body(), {})])
