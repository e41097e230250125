"""The endpoints that generate: they read a request, and send the gateway's response with the router's headers.

This is plain ASGI: a hit should cost little more than the server itself, and Starlette would add to that.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from router.api.access.auth import Authenticator
from router.api.inference.response_headers import JSON_CONTENT_TYPE, RawHeaders, ResponseHeaders
from router.api.inference.server_timing import ServerTiming
from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl, parse_cache_control
from router.core.endpoints.endpoint import Endpoint, FileUpload
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.quota.rate_limit import rate_limit_headers
from router.core.routing.max_ttft import parse_max_ttft
from router.core.routing.session import SESSION_HEADERS, Session, session_of_header
from router.core.trace_context import traceparent_of, tracestate_of
from router.errors import ENGINE_LOST, ApiError, internal_error, unavailable
from router.flow.body_budget import BodyAllocation
from router.flow.caller import NO_HEARTBEAT, Caller
from router.flow.exchange import Exchange, new_request_id
from router.flow.lookup import FullResponse
from router.flow.request_handler import RequestHandler, StreamedResponse
from router.net.server.client_connection import CLIENT_EXTENSION, AsgiReceive, ClientConnection
from router.net.server.cycle import header_lines
from router.shared.quota.rate_limits import RequestLimits
from router.telemetry.telemetry import Telemetry
from router.telemetry.tracing.tracer import Tracer

AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiScope = MutableMapping[str, Any]

_USED_HEADERS: Final = SESSION_HEADERS | {
    b"x-request-id", b"traceparent", b"tracestate", b"cache-control", b"x-cache-ttl", b"content-encoding",
    b"content-length", b"authorization", b"x-api-key", b"x-tenant-id", b"prefer", b"x-max-ttft",
}  # fmt: skip
"""The request headers that are used here; all others are filtered out once."""

_SHUTDOWN_SEND_TIMEOUT: Final = 0.5  # seconds; a client that does not read must not delay the process's end
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class BodyTooLargeError(ApiError):
    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body has more than {limit} bytes.", code="body_too_large")


class InferenceEndpoint:
    """One endpoint, as an ASGI application.

    - Every response, errors included, has `x-request-id`, and those of X-Cache, X-Task and X-Engine that are known.
    - A body over the limit is refused before it is read completely; so is one that would exceed the process's budget.
    - When the client disconnects, the work for it is cancelled at once.
    - When the server stops before a response is complete, the client gets 503, or an event that ends its stream.
    - No traceback reaches a client.
    """

    def __init__(
        self, endpoint: Endpoint, gateway: RequestHandler, auth: Authenticator, limits: RequestLimits,
        telemetry: Telemetry, new_allocation: Callable[[], BodyAllocation], *, max_body: int,
        server_timing: ServerTiming, tracer: Tracer | None = None, waits_for_start: bool = False,
    ) -> None:  # fmt: skip
        """`waits_for_start`: whether a request may wait for an engine to start.

        `new_allocation`: of the memory for all bodies in this process. `max_body`: bytes of one body.

        `tracer`: None if tracing is off.
        """
        self._endpoint = endpoint
        self._takes_form = isinstance(endpoint.input, FileUpload)
        self._gateway = gateway
        self._auth = auth
        self._limits = limits
        self._telemetry = telemetry
        self._new_allocation = new_allocation
        self._max_body = max_body
        self._server_timing = server_timing
        self._tracer = tracer
        self._waits_for_start = waits_for_start
        self._response_headers = ResponseHeaders()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        headers: RawHeaders = [header for header in scope["headers"] if header[0] in _USED_HEADERS]
        sent_id, traceparent, session = _correlation_ids(headers)
        exchange = Exchange(
            endpoint=self._endpoint, request_id=sent_id or new_request_id(), started_at=time.perf_counter(),
            traceparent=traceparent,
        )  # fmt: skip
        if traceparent is not None:
            exchange.trace_id, exchange.tracestate = traceparent[3:35], _tracestate(headers)
        client: ClientConnection = scope["extensions"][CLIENT_EXTENSION]
        caller = Caller(client, send, self._new_allocation(), scope)
        caller.session, caller.request_id = session, exchange.request_id if sent_id is None else None
        if self._takes_form:
            caller.form_type = b",".join([value for name, value in scope["headers"] if name == b"content-type"])
        if self._waits_for_start:
            caller.prefer = b",".join([value for name, value in headers if name == b"prefer"])
        tracer = self._tracer
        if tracer is not None:
            tracer.start(exchange)
        is_stopping = False
        try:
            try:
                await self._handle(exchange, headers, caller, client, receive)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                # The cancellation is handled here; the task goes on to send the end of the response.
                assert task is not None
                task.uncancel()
                if client.cancelled_by_disconnect:
                    exchange.outcome = "left"
                else:  # uvicorn cancels what is left at the end of the grace period
                    client.ignore_disconnect()
                    is_stopping = True
            if is_stopping:
                await self._abort_on_shutdown(exchange, caller, client)
        finally:
            # Every end of a request passes here. The generation holds the body separately, since it may outlive this.
            caller.heartbeat.stop()
            caller.heartbeat = NO_HEARTBEAT  # it refers to the caller
            caller.body_allocation.release()
            if caller.reservation is not None:
                caller.reservation.release()
            ended_at = time.perf_counter()
            self._telemetry.record(exchange, ended_at)
            exchange.trace.finish(exchange, ended_at)

    async def _handle(
        self, exchange: Exchange, headers: RawHeaders, caller: Caller, client: ClientConnection, receive: AsgiReceive
    ) -> None:
        send = caller.send
        refusal: ApiError | None = None
        failure: Exception | None = None
        try:
            exchange.tenant, exchange.key_id = self._auth.authenticate(
                headers, allow_x_api_key=self._endpoint.accepts_x_api_key
            )
            cache_control = _parse_cache_control(headers)
            caller.max_ttft = _max_ttft(headers)
            if self._limits.has_limits(exchange.tenant):
                # Before the body is read: an exceeded limit costs no memory.
                caller.reservation = reservation = await self._limits.reserve(exchange.tenant)
                exchange.limit_headers = header_lines(rate_limit_headers(reservation.quota, reservation.status))
                reservation.raise_if_exceeded()
            body = await read_body(headers, receive, self._max_body, caller.body_allocation)
            response = await self._gateway.handle(exchange, cache_control, body, caller)
        except ApiError as error:
            refusal = error.with_traceback(None)  # which would refer to this frame
        except ClientDisconnectedError:
            exchange.outcome = "left"
            return
        except Exception as unexpected:  # noqa: BLE001 - raised again below
            # The last line of defence: the server logs it, and the client gets an error without a traceback.
            refusal, failure = internal_error(), unexpected
        if refusal is not None:
            client.ignore_disconnect()
            await self._send_api_error(exchange, refusal, caller, client)
            if failure is not None:
                raise failure
            return
        exchange.status = 200
        if not isinstance(response, FullResponse):
            await self._send_stream(exchange, response, caller, client)
        elif caller.has_begun:
            await send({"type": "http.response.body", "body": response.body})
        else:
            client.start_response(200, self._header_lines(exchange, caller), len(response.body))
            caller.has_begun = True
            await send({"type": "http.response.body", "body": response.body})

    async def _send_api_error(
        self, exchange: Exchange, error: ApiError, caller: Caller, client: ClientConnection
    ) -> None:
        if exchange.stream and not caller.has_begun and error.code in self._endpoint.errors.streamed_codes:
            exchange.status, caller.has_begun = 200, True
            client.start_response(200, self._header_lines(exchange, caller), None)
        # Also in a stream that has begun: its client has got nothing else, and what went wrong counts the same.
        exchange.status = error.status
        exchange.outcome = "refused"
        exchange.error_reason = error.reason
        if caller.has_begun:
            await self._send_error_event(exchange, error, caller.send)
            return
        body = self._endpoint.errors.body(error, exchange.request_id)
        client.start_response(
            error.status, self._header_lines(exchange, caller) + header_lines(error_headers(error)), len(body)
        )
        caller.has_begun = True
        await caller.send({"type": "http.response.body", "body": body})

    def _header_lines(self, exchange: Exchange, caller: Caller) -> bytes:
        lines = self._response_headers.render(exchange)
        return (
            lines if exchange.generation is None else lines + self._server_timing.header_lines(exchange, caller.scope)
        )

    async def _abort_on_shutdown(self, exchange: Exchange, caller: Caller, client: ClientConnection) -> None:
        """Sends the end of the response if there is room for it; see _SHUTDOWN_SEND_TIMEOUT."""
        error = unavailable("The router is shutting down.", code="stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_SEND_TIMEOUT):
                if caller.has_begun:
                    exchange.outcome, exchange.error_reason = "failed", error.reason
                    if exchange.stream and caller.retries_after_break():
                        client.break_off()
                    else:
                        await self._send_error_event(exchange, error, caller.send)
                else:
                    await self._send_api_error(exchange, error, caller, client)

    async def _send_error_event(self, exchange: Exchange, error: ApiError, send: AsgiSend) -> None:
        """Ends a response that has begun."""
        # A JSON body that remains incomplete makes the server close the connection.
        if exchange.stream and self._endpoint.streaming is not None:
            stream = exchange.broken_stream or BrokenStream(exchange.request_id, exchange.model or "", int(time.time()))
            await send({"type": "http.response.body", "body": self._endpoint.errors.frame(error, stream)})

    async def _send_stream(
        self, exchange: Exchange, delivery: StreamedResponse, caller: Caller, client: ClientConnection
    ) -> None:
        try:
            if not caller.has_begun:
                client.start_response(200, self._header_lines(exchange, caller), None)
                caller.has_begun = True
            caller.heartbeat.follow(delivery.position)
            data = await delivery.read(client.try_send)
            while not delivery.finished:
                await caller.send({"type": "http.response.body", "body": data, "more_body": True})
                data = await delivery.read(client.try_send)
            await caller.send({"type": "http.response.body", "body": data, "more_body": delivery.is_broken_off})
            if delivery.is_broken_off:
                client.break_off()
        finally:
            # Also after a cancellation: a generation without subscribers is abandoned, not orphaned.
            delivery.close()


class ClientDisconnectedError(Exception):
    """The client disconnected before its request was complete."""


async def read_body(
    headers: RawHeaders, receive: AsgiReceive, limit: int, held_body: BodyAllocation | None = None
) -> bytes:
    """Reads the request's body; `held_body` is where its bytes are accounted for.

    Raises ApiError (413 for more than `limit` bytes, 415 for a Content-Encoding, 503 above the process's budget) and
    ClientDisconnectedError.
    """
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            # Its decoded size is unknown, and engines do not accept one either.
            raise ApiError(415, "The body must not have a Content-Encoding.", code="unsupported_encoding")
        if name == b"content-length" and value.isdigit():
            if int(value) > limit:
                raise BodyTooLargeError(limit)
            if held_body is not None:
                # A declared length is checked before any of the body is read.
                held_body.check(int(value))
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(limit)
        if held_body is not None:
            held_body.allocate(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_error(error: ApiError, send: AsgiSend, headers: RawHeaders, body: bytes) -> None:
    """Sends an error that no InferenceEndpoint has to do with. `body`: in the form of the endpoint's errors."""
    headers = [*headers, JSON_CONTENT_TYPE, (b"content-length", b"%d" % len(body)), *error_headers(error)]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_headers(error: ApiError) -> RawHeaders:
    headers: RawHeaders = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.code == ENGINE_LOST:
        headers.append((b"x-should-retry", b"false"))  # the SDKs of OpenAI and Anthropic read it
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _parse_cache_control(headers: RawHeaders) -> CacheControl:
    directives: list[bytes] = []
    ttl = None
    for name, value in headers:
        if name == b"cache-control":
            directives.append(value)
        elif name == b"x-cache-ttl" and ttl is None:
            ttl = value
    return parse_cache_control(b",".join(directives), ttl) if directives or ttl is not None else NO_DIRECTIVES


def _max_ttft(headers: RawHeaders) -> float | None:
    for name, value in headers:
        if name == b"x-max-ttft":
            return parse_max_ttft(value)
    return None


def choose_request_id(headers: RawHeaders) -> str:
    """The client's x-request-id if it is well-formed, else a new one."""
    return _correlation_ids(headers)[0] or new_request_id()


def _correlation_ids(headers: RawHeaders) -> tuple[str | None, str | None, Session | None]:
    """The client's request id, traceparent and session; None for each that is missing or malformed."""
    request_id: str | None = None
    session: Session | None = None
    traceparents: list[bytes] | None = None
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            request_id = value.decode("ascii")
        elif name == b"traceparent":
            traceparents = [value] if traceparents is None else [*traceparents, value]
        elif name in SESSION_HEADERS:
            session = session_of_header(name, value, session)
    return request_id, traceparent_of(traceparents) if traceparents is not None else None, session


def _tracestate(headers: RawHeaders) -> str | None:
    values = [value for name, value in headers if name == b"tracestate"]
    return tracestate_of(values) if values else None
