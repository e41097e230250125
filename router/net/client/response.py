"""An engine's answer, and the hold on the connection that brings it."""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from router.net.client.connection import HTTPConnection, Sink
from router.net.client.errors import EngineError

LINGER: Final = 1.0
"""Seconds in which an answer that has said all it had to say may end, so that its connection can be used again."""


class EngineResponse:
    """An engine's answer, from its head on. Closing it frees the engine.

    - `status`, `retry_after`: of the head; None where it has none.
    - `pour` gives the body as it arrives, undecoded.
    - However it ends, well, failed or cancelled, the connection is let go of: for another exchange if the answer is
      complete, else it is closed at once, which tells the engine to stop.
    """

    __slots__ = ("_complete", "_connection", "_release", "status")

    def __init__(self, connection: HTTPConnection, release: Callable[[HTTPConnection], None]) -> None:
        self.status = connection.reader.status
        self._complete = False
        self._connection: HTTPConnection | None = connection
        self._release = release

    @property
    def retry_after(self) -> str | None:
        found = self._require_connection().reader.header(b"retry-after")
        return found.decode("latin-1") if found is not None else None

    async def stream_to(self, sink: Sink, chunk_timeout: float | None = None) -> bool:
        """Gives `sink` all that comes of the body, piece by piece, in the moment at which it comes.

        `each`: seconds that each piece may take, if not all of it has to be there by the time that the head had.
        Returns True once the sink has enough, and False at the end of the body. What the sink raises ends this; so
        does EngineError.
        """
        if self._complete:
            return False
        connection = self._require_connection()
        try:
            arrival = connection.stream_to(sink, chunk_timeout)
            failure = await arrival if arrival is not None else None
        except BaseException:
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
        """The whole body; `each` as for `pour`. Raises EngineError, also for one of more than `limit` bytes."""
        body, complete = await self.read_up_to(limit, chunk_timeout)
        if not complete:
            raise EngineError("too-large", f"the engine's answer has more than {limit} bytes")
        return body

    async def read_up_to(self, limit: int, chunk_timeout: float | None = None) -> tuple[bytes, bool]:
        """The body, or the first `limit` bytes of it and something; and whether it is the whole body.

        `each` as for `pour`. Raises EngineError. What follows is not read, so the connection is closed.
        """
        parts: list[bytes] = []
        left = limit

        def take(part: bytes) -> bool:
            nonlocal left
            left -= len(part)
            parts.append(part)
            return left < 0

        exceeded = await self.stream_to(take, chunk_timeout)
        if exceeded:
            self.close()
        return parts[0] if len(parts) == 1 else b"".join(parts), not exceeded

    def close(self, *, linger: bool = False) -> None:
        """Lets go of the connection. `spent`: all that matters has come, so that only the end may follow."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        ending = None
        if linger and not connection.reader.done:
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
