"""Sending a response over ASGI, and breaking it on purpose."""

import asyncio
import socket
import struct
from collections.abc import Iterable

from msgspec.json import encode
from starlette.types import Receive, Scope, Send

from engines.simulator.rejections import Rejection

TRANSPORT_EXTENSION = "simulator.transport"
"""Name of the ASGI extension under which the server passes the connection's transport on."""

_VARY = (b"vary", b"Origin")  # vLLM's CORS middleware adds it to everything
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ConnectionDroppedError(Exception):
    """The connection was dropped on purpose."""


class ResponseWriter:
    """One response.

    - Every write is one ASGI body message, and so one HTTP chunk; `chunk_bytes` cuts them at that size instead.
    - `drop` ends the connection without ending the response: by TCP reset, or by a close that looks orderly.
    """

    def __init__(self, scope: Scope, send: Send, chunk_bytes: int | None = None) -> None:
        self._scope = scope
        self._send = send
        self._chunk_bytes = chunk_bytes
        self._buffered = b""

    async def send_json(self, status: int, body: object, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A whole JSON response; bytes are sent as they are."""
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
        """An error as vLLM words it; `body` where an endpoint shapes it otherwise."""
        await self.send_json(rejection.status, rejection.body if body is None else body, rejection.headers)

    async def start_json(self, length: int) -> None:
        """The head of a JSON response that will not be sent to its end."""
        await self._start(
            200, [(b"content-length", str(length).encode()), (b"content-type", b"application/json"), _VARY]
        )

    async def start_stream(self) -> None:
        """The head of a stream of events."""
        await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8"), _VARY])

    async def write(self, data: bytes) -> None:
        """A part of the body."""
        size = self._chunk_bytes
        if size is None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        data = self._buffered + data
        whole = len(data) - len(data) % size
        for start in range(0, whole, size):
            await self._send({"type": "http.response.body", "body": data[start : start + size], "more_body": True})
            # Lets the transport write what it has, so that the cuts arrive as they were made.
            await asyncio.sleep(0)
        self._buffered = data[whole:]

    async def end(self) -> None:
        """The end of the body."""
        await self._send({"type": "http.response.body", "body": self._buffered, "more_body": False})

    async def flush(self) -> None:
        """Give the loop the turns that it needs to hand what was written to the kernel."""
        if self._buffered:
            await self._send({"type": "http.response.body", "body": self._buffered, "more_body": True})
            self._buffered = b""
        for _ in range(3):
            await asyncio.sleep(0)

    async def drop(self, *, reset: bool) -> None:
        """Break the connection."""
        await self.flush()
        transport: asyncio.Transport = self._scope["extensions"][TRANSPORT_EXTENSION]
        if reset:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        else:
            transport.close()
        # Until the server has noticed, it would complain about a response that was never ended.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request; what came of it where the client left."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
