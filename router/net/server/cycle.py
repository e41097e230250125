"""One request and its response, with ASGI's `receive` and `send`.

Theory of operation. The head of a response is held until the first part of its body, as ASGI requires, and both leave
in one write. So a complete response is one write, and each part of a stream is one write. `send` awaits nothing as long
as the transport has room.
"""

import asyncio
import logging
from collections.abc import Awaitable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from router.net.server.client_connection import NextProtocol
from router.net.server.errors import ProtocolError
from router.net.server.write_batcher import BufferedWriter

log = logging.getLogger("uvicorn.error")

AsgiMessage = MutableMapping[str, Any]

_REASON_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = [
    f"HTTP/1.1 {status} {_REASON_PHRASES.get(status, '')}\r\n".encode("ascii") for status in range(600)
]
"""By status. An engine may send a status that has no standard phrase."""

_CONTROL_BYTES: Final = bytes([*range(9), *range(10, 32), 127])
"""Bytes that a header's value must not contain (RFC 9110, section 5.5); a tab may be in it."""

_join_with_colon: Final = b": ".join
_FRAMING_HEADERS: Final = (b"connection", b"content-length")
# Nearly all chunks have one of these sizes, so few sizes are formatted.
_CHUNK_SIZE_LINES: Final = [b"%x\r\n" % size for size in range(2048)]
_BODYLESS_STATUSES: Final = (204, 304)  # RFC 9110, section 6.4.1
_MAX_BUFFERED: Final = 64 * 1024  # bytes of a request's body that may wait to be received; above it, reading pauses


class CycleConnection(Protocol):
    """What a cycle needs of its connection. `completed_future` is done: `send` returns it where it awaits nothing."""

    transport: asyncio.Transport
    writer: BufferedWriter
    completed_future: "asyncio.Future[None]"

    def default_headers(self) -> tuple[bytes, bool]:
        """The header lines of every response, and whether `connection: close` is among them."""

    async def drain(self) -> None:
        """Returns once the transport has room."""

    def close(self) -> None:
        """Closes the connection after everything is sent."""

    def pause_reading(self, cycle: "Cycle") -> None:
        """The request's body is not read fast enough by the application."""

    def resume_reading(self) -> None:
        """The application waits for more of the request's body."""

    def extend_receive(self, seconds: float) -> None:
        """The body may arrive that much later, as the application has received a part of it."""

    def track_task(self, task: "asyncio.Task[None]") -> None:
        """The application continues in this task; the server waits for it when it stops."""

    def on_response_complete(self, cycle: "Cycle") -> None:
        """The last of the response is written."""

    def on_cycle_done(self, cycle: "Cycle") -> None:
        """The application has returned or raised."""

    def switch_protocol(self, cycle: "Cycle", head: bytes, protocol: NextProtocol) -> bool:
        """Gives the connection to another protocol in place of a response; see SwitchProtocol."""

    def respond_with_error(self, error: ProtocolError) -> None:
        """Sends an error response instead of the application's, and closes."""


class Cycle:
    """`receive` and `send` of one request, and its router.net.server.client_connection.ClientConnection.

    - Header names must be in lower case, as ASGI requires. A value with a control character is an error, and so is a
      body whose length differs from its content-length.
    - Without a content-length, the body is chunked. HTTP/1.0 has no chunks (RFC 9112, section 6.1); there, the end of
      the connection ends the body.
    - An application that ends without a complete response, or raises, is logged; if nothing was sent, the client gets
      500.
    """

    def __init__(
        self,
        connection: CycleConnection,
        is_head_request: bool,
        supports_chunked: bool,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.keep_alive = keep_alive
        self.response_complete = self.response_started = False  # started: its first bytes are written
        self.disconnected = self.cancelled_by_disconnect = False
        self.task: asyncio.Task[None] | None = None
        self.extra_headers = b""
        self._connection = connection
        self._writer = connection.writer
        self._is_head_request = is_head_request
        self._supports_chunked = supports_chunked
        self._expects_continue = expects_continue
        self._more_body = True
        self._body_parts: list[bytes] = []
        self._buffered_bytes = 0  # bytes of the request's body that the application has not received
        self._slow_body_rate = 0  # bytes a second; 0: the body has no longer than the timeout
        self._has_message = self._cancel_enabled = self._chunked = False
        self._message_event: asyncio.Event | None = None
        self._response_head: bytes | None = None
        self._remaining_length: int | None = None  # bytes of the response's body; None if its length is unknown

    # -- request ----------------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        if self.response_complete:
            # The response is complete without the rest of the body, which is read and dropped.
            return
        self._body_parts.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes > _MAX_BUFFERED:
            self._connection.pause_reading(self)
        self._wake_receiver()

    def on_body_complete(self) -> None:
        self._more_body = False
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        self._has_message = True
        if self._message_event is not None:
            self._message_event.set()

    async def receive(self) -> AsgiMessage:
        connection = self._connection
        if self._expects_continue:
            # The client waits for this (RFC 9110, section 10.1.1) and need not send a body that is never read.
            self._expects_continue = False
            if not self.response_started and not connection.transport.is_closing():
                self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._has_message or self.disconnected or self.response_complete):
            connection.resume_reading()
            self._message_event = self._message_event or asyncio.Event()
            # The event is created only here: most requests are complete before `receive` is called.
            self._message_event.clear()
            await self._message_event.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = b"".join(self._body_parts)
        self._body_parts.clear()
        self._buffered_bytes, self._has_message = 0, False
        if self._slow_body_rate:
            connection.extend_receive(len(body) / self._slow_body_rate)
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    # -- application ------------------------------------------------------------------------------------------------

    def on_task_started(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self._connection.track_task(task)
        if self._cancel_enabled:  # the client may have disconnected before there was a task to cancel
            self.cancel_on_disconnect()

    def on_app_done(self, error: BaseException | None) -> None:
        if error is not None:
            log.error("Exception in ASGI application\n", exc_info=error)
        elif not self.response_complete and not self.disconnected:
            log.error("the application returned before its response was complete")
        if not self.response_complete and not self.disconnected:
            if self.response_started:
                # Part of the response is sent: only closing tells the client that it is incomplete.
                self._connection.close()
            else:
                self.disconnected = True
                self._connection.respond_with_error(ProtocolError(500, "internal_error"))
        self._connection.on_cycle_done(self)

    # -- disconnect -------------------------------------------------------------------------------------------------

    def on_disconnect(self) -> None:
        """The client has disconnected, or gets an error in place of the application's response. Acts once."""
        if self.disconnected:
            return
        self.disconnected = True
        self._wake_receiver()
        if self._cancel_enabled:
            self.cancel_on_disconnect()

    def cancel_on_disconnect(self) -> None:
        self._cancel_enabled = True
        if self.disconnected and not self.response_complete and self.task is not None:
            self.cancelled_by_disconnect = True
            self.task.cancel()

    def ignore_disconnect(self) -> None:
        self._cancel_enabled = False

    def allow_slow_body(self, bytes_per_second: int) -> None:
        self._slow_body_rate = bytes_per_second

    # -- response ---------------------------------------------------------------------------------------------------

    def add_headers(self, lines: bytes) -> None:
        self.extra_headers += lines

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        if self._response_head is not None:
            raise RuntimeError("the response has already started")
        defaults, closes = self._connection.default_headers()
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            header_bytes += b"connection: close\r\n"
        if self.extra_headers:
            header_bytes += self.extra_headers
        if content_length is not None:
            self._remaining_length = content_length
            header_bytes += b"content-length: %d\r\n" % content_length
        elif self._is_head_request or status in _BODYLESS_STATUSES:
            self._remaining_length = 0
        elif self._supports_chunked:
            self._chunked = True
            header_bytes += b"transfer-encoding: chunked\r\n"
        self._response_head = b"%b%b%b\r\n" % (STATUS_LINES[status], defaults, header_bytes)

    def send(self, message: AsgiMessage) -> Awaitable[None]:
        connection = self._connection
        if self.disconnected:
            return connection.completed_future
        if self._writer.is_full:
            return self._send_after_drain(message)
        kind = message["type"]
        if self._response_head is None:
            if kind != "http.response.start":
                raise RuntimeError(f"the response starts with {kind}")
            self._start_from_asgi_headers(message["status"], message.get("headers", ()))
            return connection.completed_future
        if kind != "http.response.body" or self.response_complete:
            raise RuntimeError(f"unexpected message {kind}")
        data, last = self._frame_body(message.get("body", b"")), not message.get("more_body", False)
        if last:
            data += self._body_terminator()
        if not self.response_started:
            self.response_started = True
            data = self._response_head + data
        if data:
            self._writer.write(data)
        if last:
            self.response_complete = True
            # A `receive` that still waits ends with http.disconnect.
            if self._message_event is not None:
                self._message_event.set()
            connection.on_response_complete(self)
        return connection.completed_future

    def can_break_off(self) -> bool:
        return self._supports_chunked

    def break_off(self) -> None:
        if not self.disconnected and not self.response_complete:
            self.disconnected = True
            self._connection.close()

    def try_send(self, data: bytes) -> bool:
        if self._writer.is_full or self.disconnected or self.response_complete or not self.response_started:
            # Without `response_started` the head is still held, and only `send` writes it.
            return False
        self._writer.write(self._frame_body(data))
        return True

    async def _send_after_drain(self, message: AsgiMessage) -> None:
        await self._connection.drain()
        await self.send(message)

    def _start_from_asgi_headers(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Starts a response from ASGI headers; `start_response` decides on framing and persistence for both forms."""
        fields = dict(headers)
        if b"transfer-encoding" in fields:
            raise RuntimeError("the server sets the framing headers")
        if b"connection" in fields and b"close" in [word.strip() for word in fields[b"connection"].lower().split(b",")]:
            self.keep_alive = False
        length = fields.get(b"content-length")
        lines = header_lines([header for header in headers if header[0] not in _FRAMING_HEADERS])
        self.start_response(status, lines, int(length) if length is not None else None)

    def _frame_body(self, body: bytes) -> bytes:
        if self._chunked:
            # An empty chunk would end the body.
            return _chunk_size_line(len(body)) + body + b"\r\n" if body else b""
        if self._is_head_request:
            return b""
        if self._remaining_length is not None:
            self._remaining_length -= len(body)
            if self._remaining_length < 0:
                raise _length_mismatch()
        return body

    def _body_terminator(self) -> bytes:
        if self._remaining_length and not self._is_head_request:
            raise _length_mismatch()
        return b"0\r\n\r\n" if self._chunked else b""


def header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Headers in wire format. Raises RuntimeError for a header with a control character: it could become two."""
    lines = b"\r\n".join([*map(_join_with_colon, headers), b""])
    # Each header has the CR and LF of its own line; any other control byte makes the difference larger.
    if len(lines.translate(None, _CONTROL_BYTES)) != len(lines) - 2 * len(headers):
        raise RuntimeError("invalid response header")
    return lines


def _chunk_size_line(size: int) -> bytes:
    return _CHUNK_SIZE_LINES[size] if size < len(_CHUNK_SIZE_LINES) else b"%x\r\n" % size


def _length_mismatch() -> RuntimeError:
    return RuntimeError("the body does not match its content-length")
