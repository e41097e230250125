"""A stream whose last bytes wait until its response is stored."""

from collections.abc import Awaitable, Callable

from router.flow.request_handler import StreamedResponse
from router.flow.sharing.inflight import TrySend


class RememberedStream:
    """- The client gets every byte of the stream, in its order.
    - `remember` gets the last bytes before the client does. The event that ends a response is among them, since every
      stream withholds it until its end.
    """

    __slots__ = ("_remember", "_stream")

    def __init__(self, stream: StreamedResponse, remember: Callable[[bytes], Awaitable[None]]) -> None:
        self._stream = stream
        self._remember = remember

    @property
    def finished(self) -> bool:
        return self._stream.finished

    @property
    def is_broken_off(self) -> bool:
        return self._stream.is_broken_off

    async def read(self, try_send: TrySend | None = None) -> bytes:
        data = await self._stream.read(try_send)
        if self._stream.finished:
            await self._remember(data)
        return data

    def position(self) -> int:
        return self._stream.position()

    def close(self) -> None:
        self._stream.close()
