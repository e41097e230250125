"""The requests that engines get: the only interface between the router and its engines."""

from collections.abc import Awaitable

from router.core.endpoints.endpoint import Endpoint
from router.net.client.response import EngineResponse
from router.net.client.target import RequestTarget, header_line
from router.net.client.transport import HTTPTransport
from router.upstream.engine import Engine


class EngineClient:
    """Sends requests to engines over a transport. See EngineResponse.

    `head_timeout`: seconds until the head must be there; and the body too, unless it is streamed with a
    `chunk_timeout`.
    """

    def __init__(self, transport: HTTPTransport, *, connect_timeout: float) -> None:
        """`connect_timeout` in seconds."""
        self._transport = transport
        self._connect_timeout = connect_timeout

    def post(
        self, engine: Engine, endpoint: Endpoint, body: bytes, *, request_id: str, traceparent: str | None,
        head_timeout: float, total_timeout: float, tracestate: str | None = None, priority: int | None = None,
        form_type: bytes | None = None,
    ) -> Awaitable[EngineResponse]:  # fmt: skip
        """Send a request, which the engine's watch decides about; returns the response once its head is there.

        Raises EngineError.

        `total_timeout`: seconds until the complete response must be there in any case. `priority`: for vLLM's
        scheduler; None for the default. `form_type`: the Content-Type of a form; None for JSON.
        """
        target = engine.target(endpoint.path)
        trace = header_line("traceparent", traceparent) if traceparent is not None else b""
        if traceparent is not None and tracestate is not None:
            trace += header_line("tracestate", tracestate)
        if priority is not None:
            # Besides the body: the requests of /v1/messages have no such field in vLLM. The header counts more there.
            trace += header_line("x-vllm-priority", str(priority))
        message = b"%b%d\r\n%b%b\r\n%b" % (
            target.post_prefix if form_type is None else target.form_prefix(form_type),
            len(body),
            header_line("x-request-id", request_id),
            trace,
            body,
        )
        return self._transport.send(
            target.origin,
            message,
            connect_timeout=self._connect_timeout,
            head_timeout=head_timeout,
            total_timeout=total_timeout,
            watch=engine.watch,
        )

    def post_json(self, engine: Engine, path: str, body: bytes, *, timeout: float) -> Awaitable[EngineResponse]:
        """Post to one of an engine's own paths, such as /v1/load_lora_adapter. Raises EngineError."""
        target = engine.target(path)
        message = b"%b%d\r\n\r\n%b" % (target.post_prefix, len(body), body)
        return self._transport.send(
            target.origin,
            message,
            connect_timeout=self._connect_timeout,
            head_timeout=timeout,
            total_timeout=timeout,
        )

    def post_url(self, url: str, *, timeout: float) -> Awaitable[EngineResponse]:
        """Post nothing to any URL. Raises EngineError."""
        target = RequestTarget(url, "")
        return self._transport.send(
            target.origin,
            b"%b0\r\n\r\n" % target.post_prefix,
            connect_timeout=self._connect_timeout,
            head_timeout=timeout,
            total_timeout=timeout,
        )

    def get(self, engine: Engine, path: str, *, timeout: float) -> Awaitable[EngineResponse]:
        """Request one of an engine's own paths, such as /health. Raises EngineError."""
        target = engine.target(path)
        return self._transport.send(
            target.origin,
            target.get_request,
            connect_timeout=self._connect_timeout,
            head_timeout=timeout,
            total_timeout=timeout,
        )

    async def aclose(self) -> None:
        await self._transport.aclose()
