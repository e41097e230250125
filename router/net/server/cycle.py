"""One request and its answer, as an ASGI application has them.

Theory of operation. The head of an answer is kept back until the first part of its body is there, as ASGI has it, and
leaves with it in one write; so an answer that is there as a whole is one write, and so is each part of a stream. What
has room to be sent is sent at once, and nothing is awaited for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from router.net.server.errors import ProtocolError
from router.net.server.write_batcher import Sender

log = logging.getLogger("uvicorn.error")

Message = MutableMapping[str, Any]

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode("ascii") for status in range(600)]
"""By status; an engine's may be one that nobody knows."""

_CONTROLS: Final = bytes([*range(9), *range(10, 32), 127])
"""What no value of a header may have in it (RFC 9110, section 5.5)."""

_colon: Final = b": ".join
_FRAMING: Final = (b"connection", b"content-length")
_CHUNK_HEADS: Final = [b"%x\r\n" % size for size in range(2048)]  # nearly all chunks have one of these sizes
_NO_BODY: Final = (204, 304)
_MAX_HELD: Final = 64 * 1024  # bytes of a request's body beyond which no more is read until somebody takes them


class Connection(Protocol):
    """What a cycle needs of the connection that it is a part of. `sent` is done; to be awaited where nothing waits."""

    transport: asyncio.Transport
    sender: Sender
    sent: "asyncio.Future[None]"

    def defaults(self) -> tuple[bytes, bool]:
        """The header lines that every answer has, and whether they say that the connection closes."""

    async def drain(self) -> None:
        """Returns once there is room to write."""

    def close(self) -> None:
        """Closes once all is sent."""

    def pause_reading(self, cycle: "Cycle") -> None:
        """More of the request is not wanted now."""

    def resume_reading(self) -> None:
        """More of the request is wanted."""

    def works(self, task: "asyncio.Task[None]") -> None:
        """A task of the application's works on a request."""

    def answered(self, cycle: "Cycle") -> None:
        """The answer is whole."""

    def ended(self, cycle: "Cycle") -> None:
        """The application has come to its end."""

    def answer(self, error: ProtocolError) -> None:
        """Answers in the application's place, and closes."""


class Cycle:
    """`receive` and `send` of one request, and the extension router.net.server.client_connection.Client.

    - Names of headers must be in lower case, as ASGI has them. A value with a control character in it is an error, and
      so is a body of another length than its content-length.
    - Without a content-length, the body is sent in chunks; to HTTP/1.0, which has none (RFC 9112, section 6.1), its end
      is the connection's.
    - An application that ends without an answer, or by raising, is logged, and answered for: 500.
    """

    __slots__ = (
        "_connection", "_expects_continue", "_has_news", "_head", "_held", "_in_chunks", "_is_head", "_missing",
        "_more_body", "_news", "_parts", "_sender", "_takes_chunks", "_watched", "begun", "complete",
        "disconnected", "keep_alive", "left", "task",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, is_head: bool, takes_chunks: bool, keep_alive: bool, expects_continue: bool
    ) -> None:
        self.keep_alive = keep_alive
        self.complete = self.begun = False  # the answer: begun is what has been written of
        self.disconnected = self.left = False
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._sender = connection.sender
        self._is_head = is_head
        self._takes_chunks = takes_chunks
        self._expects_continue = expects_continue
        self._more_body = True
        self._parts: list[bytes] = []
        self._held = 0  # bytes of the request's body that nobody has taken
        self._has_news = self._watched = self._in_chunks = False
        self._news: asyncio.Event | None = None
        self._head: bytes | None = None
        self._missing: int | None = None  # bytes of the answer's body, where its length is known

    # -- the request ------------------------------------------------------------------------------------------------

    def arrives(self, body: bytes) -> None:
        """A part of the body has come."""
        if self.complete:
            return
        self._parts.append(body)
        self._held += len(body)
        if self._held > _MAX_HELD:
            self._connection.pause_reading(self)
        self._tell()

    def arrived(self) -> None:
        """All of it has come."""
        self._more_body = False
        self._tell()

    def _tell(self) -> None:
        self._has_news = True
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Message:
        connection = self._connection
        if self._expects_continue:
            self._expects_continue = False
            if not self.begun and not connection.transport.is_closing():
                self._sender.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._has_news or self.disconnected or self.complete):
            connection.resume_reading()
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body = b"".join(self._parts)
        self._parts.clear()
        self._held, self._has_news = 0, False
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    # -- the application --------------------------------------------------------------------------------------------

    def works(self, task: "asyncio.Task[None]") -> None:
        """The application goes on in a task."""
        self.task = task
        self._connection.works(task)
        if self._watched:  # the client may have left before there was one
            self.watch()

    def ended(self, error: BaseException | None) -> None:
        """The application has come to its end, or has raised."""
        if error is not None:
            log.error("Exception in ASGI application\n", exc_info=error)
        elif not self.complete and not self.disconnected:
            log.error("the application has ended, and its answer has not")
        if not self.complete and not self.disconnected:
            if self.begun:
                self._connection.close()
            else:
                self.disconnected = True
                self._connection.answer(ProtocolError(500, "internal_error"))
        self._connection.ended(self)

    # -- the client leaves ------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """The client has left, or gets no answer of the application's any more. It is told once."""
        if self.disconnected:
            return
        self.disconnected = True
        self._tell()
        if self._watched:
            self.watch()

    def watch(self) -> None:
        self._watched = True
        if self.disconnected and not self.complete and self.task is not None:
            self.left = True
            self.task.cancel()

    def stop(self) -> None:
        self._watched = False

    # -- the answer -------------------------------------------------------------------------------------------------

    def begin(self, status: int, lines: bytes, length: int | None) -> None:
        if self._head is not None:
            raise RuntimeError("the answer has begun")
        defaults, closes = self._connection.defaults()
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        if length is not None:
            self._missing = length
            lines += b"content-length: %d\r\n" % length
        elif self._is_head or status in _NO_BODY:
            self._missing = 0
        elif self._takes_chunks:
            self._in_chunks = True
            lines += b"transfer-encoding: chunked\r\n"
        self._head = b"%b%b%b\r\n" % (STATUS_LINES[status], defaults, lines)

    def send(self, message: Message) -> Awaitable[None]:
        connection = self._connection
        if self.disconnected:
            return connection.sent
        if self._sender.is_full:
            return self._send_later(message)
        kind = message["type"]
        if self._head is None:
            if kind != "http.response.start":
                raise RuntimeError(f"the answer begins with {kind}")
            self._start(message["status"], message.get("headers", ()))
            return connection.sent
        if kind != "http.response.body" or self.complete:
            raise RuntimeError(f"{kind} has no place there")
        data, last = self._framed(message.get("body", b"")), not message.get("more_body", False)
        if last:
            data += self._end()
        if not self.begun:
            self.begun = True
            data = self._head + data
        if data:
            self._sender.write(data)
        if last:
            self.complete = True
            if self._news is not None:
                self._news.set()
            connection.answered(self)
        return connection.sent

    def take(self, data: bytes) -> bool:
        if self._sender.is_full or self.disconnected or self.complete or not self.begun:
            return False
        self._sender.write(self._framed(data))
        return True

    async def _send_later(self, message: Message) -> None:
        await self._connection.drain()
        await self.send(message)

    def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begins with headers as ASGI has them; how the body is framed, and whether the connection stays, is said in
        one place for all."""
        said = dict(headers)
        if b"transfer-encoding" in said:
            raise RuntimeError("the framing is the server's")
        if b"connection" in said and b"close" in [word.strip() for word in said[b"connection"].lower().split(b",")]:
            self.keep_alive = False
        length = said.get(b"content-length")
        lines = header_lines([header for header in headers if header[0] not in _FRAMING])
        self.begin(status, lines, int(length) if length is not None else None)

    def _framed(self, body: bytes) -> bytes:
        if self._in_chunks:
            return _chunk_head(len(body)) + body + b"\r\n" if body else b""
        if self._is_head:
            return b""
        if self._missing is not None:
            self._missing -= len(body)
            if self._missing < 0:
                raise _other_length()
        return body

    def _end(self) -> bytes:
        """What follows the last of the body."""
        if self._missing and not self._is_head:
            raise _other_length()
        return b"0\r\n\r\n" if self._in_chunks else b""


def header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Headers as they are sent. Raises RuntimeError for one with a control character in it: it might become two."""
    lines = b"\r\n".join([*map(_colon, headers), b""])
    if len(lines.translate(None, _CONTROLS)) != len(lines) - 2 * len(headers):
        raise RuntimeError("a header that cannot be sent")
    return lines


def _chunk_head(size: int) -> bytes:
    return _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size


def _other_length() -> RuntimeError:
    return RuntimeError("the body has another length than the head says")
