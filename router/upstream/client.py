"""The one seam to the engines: what is asked of them, and how the answer comes."""

from collections.abc import Awaitable

from router.core.types import Endpoint
from router.net.client.response import EngineResponse
from router.net.client.target import header_line
from router.net.client.transport import HTTPTransport
from router.upstream.catalog import Engine


class EngineClient:
    """Asks engines, through the transport that it is given. See EngineResponse.

    `patience`: seconds until the head of the answer must be there, and its body too, unless that is poured by and by.
    """

    def __init__(self, transport: HTTPTransport, *, connect_timeout: float) -> None:
        """`connect_timeout` in seconds."""
        self._transport = transport
        self._connect_timeout = connect_timeout

    def post(
        self, engine: Engine, endpoint: Endpoint, body: bytes, *, request_id: str, traceparent: str | None,
        head_timeout: float, total_timeout: float,
    ) -> Awaitable[EngineResponse]:  # fmt: skip
        """Sends a request; gives the answer once its head is there. Raises EngineError.

        `total`: seconds until the whole answer must be there in any case.
        """
        page = engine.target(endpoint.path)
        trace = header_line("traceparent", traceparent) if traceparent is not None else b""
        message = b"%b%d\r\n%b%b\r\n%b" % (
            page.post_prefix,
            len(body),
            header_line("x-request-id", request_id),
            trace,
            body,
        )
        return self._transport.send(
            page.origin,
            message,
            connect_timeout=self._connect_timeout,
            head_timeout=head_timeout,
            total_timeout=total_timeout,
        )

    def get(self, engine: Engine, path: str, *, timeout: float) -> Awaitable[EngineResponse]:
        """Asks for one of an engine's own pages, such as /health. Raises EngineError."""
        page = engine.target(path)
        return self._transport.send(
            page.origin,
            page.get_request,
            connect_timeout=self._connect_timeout,
            head_timeout=timeout,
            total_timeout=timeout,
        )

    async def aclose(self) -> None:
        await self._transport.aclose()
