"""The endpoints that generate: bytes in, bytes out, and the headers that say what was done.

Plain ASGI, because a hit is to cost little more than what the server itself costs.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from router.api.auth import Authenticator
from router.api.response_headers import JSON_CONTENT_TYPE, RawHeaders, ResponseHeaders
from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl, parse_cache_control
from router.core.endpoints.error_format import error_frame
from router.core.routing.affinity import SESSION_ID
from router.core.types import Endpoint
from router.errors import ApiError, internal_error, unavailable
from router.flow.body_budget import BodyAllocation, BodyBudget
from router.flow.exchange import Exchange, new_request_id
from router.flow.gateway import Gateway
from router.flow.inflight import Subscriber
from router.net.server.client_connection import CLIENT_EXTENSION, AsgiReceive, ClientConnection
from router.net.server.cycle import header_lines
from router.shared.rate_limits import TenantLimits
from router.telemetry import Telemetry

AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiScope = MutableMapping[str, Any]

_USED_HEADERS: Final = frozenset((
    b"x-request-id", b"traceparent", b"x-session-id", b"cache-control", b"x-cache-ttl", b"content-encoding",
    b"content-length", b"authorization", b"x-api-key", b"x-tenant-id",
))  # fmt: skip
"""The headers of a request that anything here asks for; all others are passed over once."""

_SHUTDOWN_SEND_TIMEOUT: Final = 0.5  # seconds
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class BodyTooLargeError(ApiError):
    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body has more than {limit} bytes.", code="body_too_large")


class InferenceEndpoint:
    """One endpoint, as an ASGI application.

    - Every answer, errors included, has `x-request-id`, and what is known of X-Cache, X-Task and X-Engine.
    - A body over the limit is refused before it is read to its end, and so is one for which the process holds too much.
    - When the client leaves, the work for it is cancelled at once.
    - When the server stops before the answer is whole, the client is told so: 503, or an event at the end of a stream.
    - No traceback reaches a client.
    """

    def __init__(
        self, endpoint: Endpoint, gateway: Gateway, auth: Authenticator, limits: TenantLimits, telemetry: Telemetry,
        body_budget: BodyBudget, *, max_body: int, max_bodies: int,
    ) -> None:  # fmt: skip
        """`max_body`: bytes of one body; `max_bodies`: of all that this process holds, those of other endpoints too."""
        self._endpoint = endpoint
        self._gateway = gateway
        self._auth = auth
        self._limits = limits
        self._telemetry = telemetry
        self._body_budget = body_budget
        self._max_body = max_body
        self._max_bodies = max_bodies
        self._response_headers = ResponseHeaders()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        headers: RawHeaders = [header for header in scope["headers"] if header[0] in _USED_HEADERS]
        given, traceparent, session = _correlation_ids(headers)
        held = BodyAllocation(self._body_budget, self._max_bodies)
        exchange = Exchange(
            endpoint=self._endpoint, request_id=given or new_request_id(), has_client_request_id=given is not None,
            started_at=time.perf_counter(), traceparent=traceparent, session_id=session, body_allocation=held,
        )  # fmt: skip
        client: ClientConnection = scope["extensions"][CLIENT_EXTENSION]
        try:
            await self._handle(exchange, headers, client, receive, send)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if client.cancelled_by_disconnect:
                exchange.outcome = "left"
            else:  # the server stops, and has waited for long enough
                client.ignore_disconnect()
                await self._abort_on_shutdown(exchange, client, send)
        finally:
            held.release()
            if exchange.permit is not None:
                exchange.permit.release()
            self._telemetry.record(exchange, time.perf_counter())

    async def _handle(
        self, exchange: Exchange, headers: RawHeaders, client: ClientConnection, receive: AsgiReceive, send: AsgiSend
    ) -> None:
        try:
            exchange.tenant = self._auth.authenticate(headers, allow_x_api_key=self._endpoint is Endpoint.MESSAGES)
            control = _parse_cache_control(headers)
            if self._limits.has_limits(exchange.tenant):
                exchange.permit = await self._limits.reserve(exchange.tenant)
                exchange.permit.raise_if_exceeded()
            body = await read_body(headers, receive, self._max_body, exchange.body_allocation)
            answer = await self._gateway.handle(exchange, control, body, client)
        except ApiError as error:
            client.ignore_disconnect()
            await self._send_api_error(exchange, error, client, send)
        except ClientDisconnectedError:
            exchange.outcome = "left"
        except Exception:
            # The last line of defence: the server logs it, and the client gets an error without a traceback.
            client.ignore_disconnect()
            await self._send_api_error(exchange, internal_error(), client, send)
            raise
        else:
            exchange.status = 200
            if isinstance(answer, Subscriber):
                await self._send_stream(exchange, answer, client, send)
            else:
                client.start_response(200, self._response_headers.render(exchange), len(answer.body))
                await send({"type": "http.response.body", "body": answer.body})

    async def _send_api_error(
        self, exchange: Exchange, error: ApiError, client: ClientConnection, send: AsgiSend
    ) -> None:
        exchange.status = error.status
        exchange.outcome = "refused"
        exchange.error_reason = error.reason
        body = error.body()
        client.start_response(
            error.status, self._response_headers.render(exchange) + header_lines(_error_headers(error)), len(body)
        )
        await send({"type": "http.response.body", "body": body})

    async def _abort_on_shutdown(self, exchange: Exchange, client: ClientConnection, send: AsgiSend) -> None:
        """Tells the client that no more will come: at once, since who does not read is not waited for."""
        error = unavailable("The router is stopping.", code="stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_SEND_TIMEOUT):
                if exchange.status == 0:
                    await self._send_api_error(exchange, error, client, send)
                    return
                exchange.outcome, exchange.error_reason = "failed", error.code
                if exchange.stream:
                    await send({"type": "http.response.body", "body": error_frame(self._endpoint, error)})

    async def _send_stream(
        self, exchange: Exchange, reader: Subscriber, client: ClientConnection, send: AsgiSend
    ) -> None:
        try:
            client.start_response(200, self._response_headers.render(exchange), None)
            while not reader.finished:
                data = await reader.read(client.try_send)
                await send({"type": "http.response.body", "body": data, "more_body": not reader.finished})
        finally:
            reader.close()


class ClientDisconnectedError(Exception):
    """The client left before its request was complete."""


async def read_body(
    headers: RawHeaders, receive: AsgiReceive, limit: int, held_body: BodyAllocation | None = None
) -> bytes:
    """The request's body, which is counted as `held`.

    Raises ApiError (413 for more than `limit` bytes, 415 for a coded one, 503 where too much is held), ClientLeftError.
    """
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            # What it would unfold to has no bound, and engines do not take it either.
            raise ApiError(415, "The body must be sent without a Content-Encoding.", code="unsupported_encoding")
        if name == b"content-length" and value.isdigit():
            if int(value) > limit:
                raise BodyTooLargeError(limit)
            if held_body is not None:
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


async def send_error(error: ApiError, send: AsgiSend, headers: RawHeaders) -> None:
    """Sends an error as the whole answer."""
    body = error.body()
    headers = [*headers, JSON_CONTENT_TYPE, (b"content-length", b"%d" % len(body)), *_error_headers(error)]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error_headers(error: ApiError) -> RawHeaders:
    """What a client is to do about an error."""
    headers: RawHeaders = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _parse_cache_control(headers: RawHeaders) -> CacheControl:
    """What the client asks of the cache. Raises ApiError."""
    wishes: list[bytes] = []
    ttl = None
    for name, value in headers:
        if name == b"cache-control":
            wishes.append(value)
        elif name == b"x-cache-ttl" and ttl is None:
            ttl = value
    return parse_cache_control(b",".join(wishes), ttl) if wishes or ttl is not None else NO_DIRECTIVES


def choose_request_id(headers: RawHeaders) -> str:
    """The client's x-request-id if it sent a sane one, else a new one."""
    return _correlation_ids(headers)[0] or new_request_id()


def _correlation_ids(headers: RawHeaders) -> tuple[str | None, str | None, str | None]:
    """The client's id for the request, its traceparent and its session, if it has sane ones.

    Source: https://www.w3.org/TR/trace-context/.
    """
    given = traceparent = session = None
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given = value.decode("ascii")
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            traceparent = value.decode("ascii")
        elif name == b"x-session-id" and SESSION_ID.fullmatch(value):
            session = value.decode("ascii")
    return given, traceparent, session
