"""Sending a response over ASGI, and breaking the connection on purpose."""

import asyncio
import socket
import struct
from collections.abc import Iterable

from msgspec.json import encode
from starlette.types import Receive, Scope, Send

from engines.simulator.rejections import Rejection

TRANSPORT_EXTENSION = "simulator.transport"
"""Name of the ASGI extension that holds the connection's transport."""

_VARY = (b"vary", b"Origin")  # vLLM's CORS middleware adds it to everything
# struct linger with a timeout of 0: close() then sends a RST instead of a FIN.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ConnectionDroppedError(Exception):
    """A fault drops the connection."""


class ResponseWriter:
    """One response.

    - Every write is one ASGI body message, and so one HTTP chunk; `chunk_bytes` cuts the body at that size instead.
    - `drop` ends the connection without ending the response: by TCP reset, or by an orderly close.
    """

    def __init__(self, scope: Scope, send: Send, chunk_bytes: int | None = None) -> None:
        self._scope = scope
        self._send = send
        self._chunk_bytes = chunk_bytes
        self._buffered = b""

    async def send_json(self, status: int, body: object, headers: Iterable[tuple[str, str]] = ()) -> None:
        content = body if isinstance(body, bytes) else encode(body)
        extra = [(name.lower().encode(), value.encode()) for name, value in headers]
        await self._start(
            status,
            [
                *extra,
                (b"content-length", str(len(content)).encode()),
                (b"content-type", b"application/json"),
                _VARY,
            ],
        )
        await self.write(content)
        await self.end()

    async def send_error(self, rejection: Rejection, body: object = None) -> None:
        """Sends an error as vLLM does; `body` replaces it for endpoints with another error format."""
        await self.send_json(rejection.status, rejection.body if body is None else body, rejection.headers)

    async def start_json(self, length: int) -> None:
        """Sends the head of a JSON response whose body will not be completed."""
        await self._start(
            200, [(b"content-length", str(length).encode()), (b"content-type", b"application/json"), _VARY]
        )

    async def start_stream(self) -> None:
        await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8"), _VARY])

    async def write(self, data: bytes) -> None:
        size = self._chunk_bytes
        if size is None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        data = self._buffered + data
        complete = len(data) - len(data) % size
        for start in range(0, complete, size):
            await self._send({"type": "http.response.body", "body": data[start : start + size], "more_body": True})
            # Lets the transport write this chunk first, so that each chunk arrives on its own.
            await asyncio.sleep(0)
        self._buffered = data[complete:]

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": self._buffered, "more_body": False})

    async def flush(self) -> None:
        """Passes everything written so far to the kernel."""
        if self._buffered:
            await self._send({"type": "http.response.body", "body": self._buffered, "more_body": True})
            self._buffered = b""
        # uvicorn and the transport write in later iterations of the event loop.
        for _ in range(3):
            await asyncio.sleep(0)

    async def drop(self, *, reset: bool) -> None:
        """Flushes what was written and breaks the connection."""
        await self.flush()
        # The faults need a real close; ASGI has no message for it.
        transport: asyncio.Transport = self._scope["extensions"][TRANSPORT_EXTENSION]
        if reset:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        else:
            transport.close()
        # uvicorn logs an error for a response that is not completed, unless it has seen the disconnect first.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def read_body(receive: Receive) -> bytes:
    """The body of a request; incomplete if the client disconnects."""
    parts = []
    while True:
        # A disconnect message has no body, so an incomplete body is returned.
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
