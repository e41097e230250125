"""The bodies of an exchange as streams: what a request sends, and what a response brings."""

from collections.abc import AsyncIterable, AsyncIterator, Callable

import httpx

from router.upstream.connection import Connection
from router.upstream.http1 import CHUNKED, LAST_CHUNK, encode_body, encode_chunk, encode_head


def encode_request(request: httpx.Request) -> tuple[bytes, "RequestBody | None"]:
    """What is written first, and the rest of the body if that is not in memory.

    Raises `httpx.LocalProtocolError` for what HTTP/1.1 cannot carry, `TypeError` for a body that cannot be read here.
    """
    stream = request.stream
    try:
        head, length = encode_head(request.method, request.url.raw_path, request.headers.raw)
        if isinstance(stream, httpx.ByteStream):
            return head + encode_body(request.read(), length), None
    except httpx.LocalProtocolError as error:
        error.request = request
        raise
    if not isinstance(stream, httpx.AsyncByteStream):
        raise TypeError("a body that can only be read synchronously")
    return head, RequestBody(stream, length, request)


class RequestBody:
    """A body that comes from an async iterable, sent as its head announced it: by length, or in chunks."""

    __slots__ = ("_length", "_parts", "_request")

    def __init__(self, parts: AsyncIterable[bytes], length: int, request: httpx.Request) -> None:
        self._parts = parts
        self._length = length
        self._request = request

    async def send(self, connection: Connection) -> bool:
        """Send it all, unless the server answers before: whether it was all sent.

        Raises `httpx.WriteTimeout`, and `httpx.LocalProtocolError` if it is not as long as announced.
        """
        patience = (self._request.extensions.get("timeout") or {}).get("write")
        sent = 0
        async for part in self._parts:
            if connection.reader.head:
                return False
            connection.check()
            if not part:
                continue
            sent += len(part)
            if self._length == CHUNKED:
                connection.write(encode_chunk(part))
            elif sent <= self._length:
                connection.write(part)
            await connection.drain(patience)
        if self._length == CHUNKED:
            connection.write(LAST_CHUNK)
        elif sent != self._length:
            message = f"a body of {sent} bytes, of which the headers announce {self._length}"
            raise httpx.LocalProtocolError(message, request=self._request)
        return True


class ResponseStream(httpx.AsyncByteStream):
    """The body of a response as it comes, and the hold on its connection: however this stream ends, it lets go of that.

    Iterating on after the end is the end again; after an early end it is `httpx.StreamClosed`.
    """

    __slots__ = ("_complete", "_connection", "_release")

    def __init__(self, connection: Connection, release: Callable[[Connection], None]) -> None:
        self._connection: Connection | None = connection
        self._release = release
        self._complete = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """What has arrived since the last call; waits if that is nothing. Failed or cancelled, the stream ends."""
        connection = self._connection
        if connection is None:
            if self._complete:
                raise StopAsyncIteration
            raise httpx.StreamClosed
        reader = connection.reader
        try:
            while not reader.chunks and not reader.done:
                connection.check()
                await connection.more()
                self._check()
        except BaseException:
            self._end()
            raise
        data = connection.take()
        if reader.done:
            self._complete = True
            self._end()
            if not data:
                raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Let go of the connection: for another exchange if the response is complete, else it is closed at once."""
        self._end()

    def _check(self) -> None:
        if self._connection is None:  # closed by another task while this one waited
            raise httpx.StreamClosed

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._release(connection)
