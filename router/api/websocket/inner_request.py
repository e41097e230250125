"""One `response.create` as a request over HTTP to the same application, and its response as messages.

So keys, limits, the cache, flights, metrics and logs are those of HTTP, and the story of a request knows no WebSocket.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from router.api.inference.endpoint import AsgiScope, AsgiSend
from router.api.websocket.create_message import error_message
from router.api.websocket.event_messages import EventMessages, FinalResponse, headers_message
from router.errors import internal_error
from router.net.server.client_connection import CLIENT_EXTENSION, AsgiReceive
from router.net.server.cycle import AsgiMessage, header_lines
from router.net.server.websocket import WebSocketConnection

log = logging.getLogger("roundhouse.websocket")

Application = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

_HANDSHAKE_HEADERS: Final = frozenset((b"content-length", b"content-type", b"transfer-encoding", b"x-request-id"))
"""Of the request that opened the connection, in addition to `sec-websocket-…`; each message has an id of its own."""


def inner_scope(handshake: AsgiScope, body: bytes) -> AsgiScope:
    headers = [
        (name, value)
        for name, value in handshake["headers"]
        if name not in _HANDSHAKE_HEADERS and not name.startswith(b"sec-websocket-")
    ]
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return {**handshake, "method": "POST", "query_string": b"", "headers": headers}


class InnerRequest:
    """`receive` and `send` of the request, and its ClientConnection.

    - The headers of the response are a message before its first event, and are sent with it.
    - An error response becomes one message; so does a response that ends without an event that ends it.
    - A client that has yet to read pauses the response, as over HTTP.
    - When the client disconnects, the request's task is cancelled, as over HTTP.
    - `final`: the response, once it is complete.
    """

    def __init__(self, connection: WebSocketConnection, body: bytes) -> None:
        self.cancelled_by_disconnect = False
        self._connection = connection
        self._body: bytes | None = body
        self._events = EventMessages()
        self._disconnected = asyncio.Event()
        self._cancel_enabled = False
        self._task: asyncio.Task[None] | None = None
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._has_sent_headers = False
        self._error_parts: list[bytes] = []

    @property
    def final(self) -> FinalResponse | None:
        return self._events.final

    async def run(self, application: Application, handshake: AsgiScope) -> None:
        """Returns when everything is sent, or the client has gone."""
        assert self._body is not None
        scope = inner_scope(handshake, self._body)
        scope["extensions"] = {CLIENT_EXTENSION: self}
        # In a task of its own, as over HTTP: a cancellation of the request must not end the connection.
        self._task = self._connection.start(self._call(application, scope))
        self._connection.on_disconnect = self._on_disconnect
        try:
            await asyncio.wait((self._task,))
        finally:
            self._connection.on_disconnect = None
        # Over HTTP, a response ends with its body. Here a client waits for an event that ends it.
        if not self._events.has_ended:
            self._send_error()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            log.error("Exception in ASGI application", exc_info=error)

    async def _call(self, application: Application, scope: AsgiScope) -> None:
        await application(scope, self.receive, self.send)

    def _send_error(self) -> None:
        error, body = internal_error(), b"".join(self._error_parts)
        status = self._status or error.status
        is_error = status != 200 and body
        self._connection.send([error_message(status, body, self._headers) if is_error else
                               error_message(error.status, error.body(), {})])  # fmt: skip

    # -- ASGI -------------------------------------------------------------------------------------------------------

    async def receive(self) -> AsgiMessage:
        if self._body is None:
            await self._disconnected.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            self.start_response(message["status"], header_lines(message.get("headers", ())), None)
            return
        self._feed(message.get("body", b""))
        if self._connection.is_full:
            await self._connection.drain()

    def _feed(self, data: bytes) -> None:
        if self._status != 200:
            self._error_parts.append(data)
        elif messages := self._events.feed(data):
            if not self._has_sent_headers:
                self._has_sent_headers = True
                messages.insert(0, headers_message(self._headers))
            self._connection.send(messages)

    # -- ClientConnection -------------------------------------------------------------------------------------------

    def cancel_on_disconnect(self) -> None:
        self._cancel_enabled = True
        if self._disconnected.is_set():
            self._cancel()

    def ignore_disconnect(self) -> None:
        self._cancel_enabled = False

    def add_headers(self, lines: bytes) -> None:
        """They are for a browser that reads a response over HTTP."""

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        self._status = status
        for line in header_bytes.decode("latin-1").splitlines():
            name, _, value = line.partition(": ")
            self._headers[name.lower()] = value

    def can_break_off(self) -> bool:
        return False  # the connection is for other requests, too

    def break_off(self) -> None:
        pass

    def try_send(self, data: bytes) -> bool:
        if self._connection.is_full or self._status is None or self._disconnected.is_set():
            return False
        self._feed(data)
        return True

    def _on_disconnect(self) -> None:
        self._disconnected.set()
        if self._cancel_enabled:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and not self._events.has_ended:
            self.cancelled_by_disconnect = True
            self._task.cancel()
