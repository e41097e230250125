"""An engine's response, which holds its connection until it is closed."""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from router.net.client.connection import HTTPConnection, Sink
from router.net.client.errors import EngineError

LINGER: Final = 1.0
"""Seconds a response without further content may take to end, so that its connection can be reused."""


class EngineResponse:
    """An engine's response from its head on. Closing it stops the engine.

    - `status`, `retry_after`, `content_type`: from the head; None where it has none.
    - `connect_seconds`: how long its connection took to open; None if another exchange has used it before.
    - `stream_to` passes the body on as it arrives, undecoded.
    - However it ends, complete, failed or cancelled, the connection is released: to the pool if the response is
      complete; otherwise it is closed at once, so that the engine stops generating.
    """

    def __init__(self, connection: HTTPConnection, release: Callable[[HTTPConnection], None]) -> None:
        self.status = connection.reader.status
        self._complete = False
        self._connection: HTTPConnection | None = connection
        self._release = release

    @property
    def retry_after(self) -> str | None:
        value = self._require_connection().reader.header(b"retry-after")
        return value.decode("latin-1") if value is not None else None

    @property
    def content_type(self) -> bytes | None:
        return self._require_connection().reader.header(b"content-type")

    @property
    def connect_seconds(self) -> float | None:
        connection = self._require_connection()
        return connection.connect_seconds if connection.is_first_exchange else None

    async def stream_to(self, sink: Sink, chunk_timeout: float | None = None) -> bool:
        """Pass each chunk of the body to `sink` when it arrives.

        `chunk_timeout`: seconds per chunk; without it the deadline of the head holds for the whole body.
        Returns True once the sink needs no more, False at the end of the body. Raises EngineError, and what `sink`
        raises.
        """
        if self._complete:
            return False
        connection = self._require_connection()
        try:
            waiter = connection.stream_to(sink, chunk_timeout)
            failure = await waiter if waiter is not None else None
        except BaseException:  # a cancellation too: the engine stops only when its connection closes
            self.close()
            raise
        if failure is not None:
            self.close()
            raise failure
        enough = connection.sink_done
        if connection.is_consumed:
            self._complete = True
            self.close()
        return enough

    async def read(self, limit: int, chunk_timeout: float | None = None) -> bytes:
        """The complete body; `chunk_timeout` as for `stream_to`. Raises EngineError (`too-large` beyond `limit`)."""
        body, complete = await self.read_up_to(limit, chunk_timeout)
        if not complete:
            raise EngineError("too-large", f"the engine's response has more than {limit} bytes")
        return body

    async def read_up_to(self, limit: int, chunk_timeout: float | None = None) -> tuple[bytes, bool]:
        """The body and True; or slightly more than its first `limit` bytes and False.

        `chunk_timeout` as for `stream_to`. Raises EngineError. The rest is not read, so the connection is closed.
        """
        parts: list[bytes] = []
        remaining = limit

        def take(part: bytes) -> bool:
            nonlocal remaining
            remaining -= len(part)
            parts.append(part)
            return remaining < 0

        exceeded = await self.stream_to(take, chunk_timeout)
        if exceeded:
            self.close()
        return parts[0] if len(parts) == 1 else b"".join(parts), not exceeded

    def bind_if(self, is_bound: Callable[[], bool]) -> None:
        """Its watch does not end it while `is_bound` returns True: nobody else can give the rest of the response."""
        if self._connection is not None:  # else the response is complete
            self._connection.bind_if(is_bound)

    def unwatch(self) -> None:
        """From now on, the watch of the request does not decide how long it may be silent."""
        self._require_connection().unwatch()

    def close(self, *, linger: bool = False) -> None:
        """Release the connection. `linger`: the content is complete, so only the end of the response may follow."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.unwatch()
        ending = None
        if linger and not connection.reader.done:
            # Further content ends the wait, and the connection is closed unless the response ended with it.
            ending = connection.stream_to(lambda _: True, LINGER)
        if ending is None:
            self._release(connection)
        else:
            ending.add_done_callback(lambda _: self._release(connection))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_connection(self) -> HTTPConnection:
        if self._connection is None:
            raise RuntimeError("the response is closed")
        return self._connection
