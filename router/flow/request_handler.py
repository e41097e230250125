"""What an endpoint passes a request to: the gateway, or what stands before it."""

from typing import Protocol

from router.core.cache.cache_control import CacheControl
from router.flow.caller import Caller
from router.flow.exchange import Exchange
from router.flow.lookup import FullResponse
from router.flow.sharing.inflight import TrySend


class StreamedResponse(Protocol):
    """A stream in progress; see ResponseDelivery."""

    @property
    def finished(self) -> bool: ...

    @property
    def is_broken_off(self) -> bool:
        """Whether it is finished without an end, which the client is to see: its connection must close."""

    async def read(self, try_send: TrySend | None = None) -> bytes: ...

    def position(self) -> int: ...

    def close(self) -> None: ...


class RequestHandler(Protocol):
    async def handle(
        self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller
    ) -> FullResponse | StreamedResponse:
        """The response for the client. Raises ApiError."""
