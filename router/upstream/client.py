"""The one seam to the engines: what is asked of them, and how the answer comes."""

from collections.abc import Awaitable

from router.core.types import Endpoint
from router.net.client.response import EngineResponse
from router.net.client.target import field
from router.net.client.transport import Transport
from router.upstream.catalog import Engine


class EngineClient:
    """Asks engines, through the transport that it is given. See EngineResponse.

    `patience`: seconds until the head of the answer must be there, and its body too, unless that is poured by and by.
    """

    def __init__(self, transport: Transport, *, connect_timeout: float) -> None:
        """`connect_timeout` in seconds."""
        self._transport = transport
        self._connect_timeout = connect_timeout

    def post(
        self, engine: Engine, endpoint: Endpoint, body: bytes, *, request_id: str, traceparent: str | None,
        patience: float, total: float,
    ) -> Awaitable[EngineResponse]:  # fmt: skip
        """Sends a request; gives the answer once its head is there. Raises EngineError.

        `total`: seconds until the whole answer must be there in any case.
        """
        page = engine.at(endpoint.path)
        trace = field("traceparent", traceparent) if traceparent is not None else b""
        message = b"%b%d\r\n%b%b\r\n%b" % (page.post, len(body), field("x-request-id", request_id), trace, body)
        return self._transport.send(page.origin, message, connect=self._connect_timeout, patience=patience, total=total)

    def get(self, engine: Engine, path: str, *, patience: float) -> Awaitable[EngineResponse]:
        """Asks for one of an engine's own pages, such as /health. Raises EngineError."""
        page = engine.at(path)
        return self._transport.send(
            page.origin, page.get, connect=self._connect_timeout, patience=patience, total=patience
        )

    async def aclose(self) -> None:
        await self._transport.aclose()
