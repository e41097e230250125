"""HTTP as bytes, for requests that no well-behaved client sends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.support.waiting import TEST_TIMEOUT

CRLF = b"\r\n"


class RawResponse(NamedTuple):
    """A response as received; a chunked body is joined."""

    status: int
    head: bytes
    body: bytes

    @property
    def error_code(self) -> Any:
        return json.loads(self.body)["error"]["code"]


class RawConnection:
    """A connection to a router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def write(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def read_response(self, *, to_head_request: bool = False) -> RawResponse:
        """The next response, interim ones included; `to_head_request`: it has no body."""
        async with asyncio.timeout(TEST_TIMEOUT):
            head = await self._reader.readuntil(CRLF + CRLF)
            status = int(head.split()[1])
            lower = head.lower()
            # RFC 9110, section 9.3.2 and 15.2: these have no content.
            if to_head_request or status < 200:
                return RawResponse(status, lower, b"")
            if b"transfer-encoding: chunked" in lower:
                return RawResponse(status, lower, await self._read_chunks())
            if b"content-length: " in lower:
                size = int(lower.partition(b"content-length: ")[2].split(CRLF)[0])
                return RawResponse(status, lower, await self._reader.readexactly(size))
            return RawResponse(status, lower, await self._reader.read())

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readuntil(CRLF), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return body

    async def read_to_end(self) -> bytes:
        async with asyncio.timeout(TEST_TIMEOUT):
            try:
                return await self._reader.read()
            except ConnectionResetError:  # the router closed the socket with unread data in it
                return b""


@asynccontextmanager
async def connect(port: int, *, host: str = "127.0.0.1", limit: int = 1 << 20) -> AsyncIterator[RawConnection]:
    """Connects to a router; `limit` is the number of bytes that are read ahead."""
    reader, writer = await asyncio.open_connection(host, port, limit=limit)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()


def http_request(
    body: Any = None, *headers: bytes, method: bytes = b"POST", path: bytes = b"/v1/chat/completions"
) -> bytes:
    """A request with a Host header; `body` is sent as JSON with its length, unless it is None."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [b"%b %b HTTP/1.1" % (method, path), b"host: router", *headers]
    if body is not None:
        lines.append(b"content-length: %d" % len(data))
    return CRLF.join(lines) + CRLF + CRLF + data


def chunked_body(*pieces: bytes, trailers: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailers + CRLF


VERSION_REQUEST = http_request(method=b"GET", path=b"/version")
"""A request that the router answers without an engine."""

CHAT_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\n"
"""The start of a request's head."""
