"""The endpoints that generate: bytes in, bytes out, and the headers that say what was done.

Plain ASGI, because a hit is to cost little more than what the server itself costs.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from random import randbytes
from typing import Any, Final

from router.api.auth import Authenticator
from router.api.leaving import ClientLeaving, Receive
from router.core.affinity import SESSION
from router.core.control import NO_WISHES, Control, read_control
from router.core.error_shapes import error_frame
from router.core.limits import headers as limit_headers
from router.core.types import CacheStatus, Endpoint
from router.errors import ApiError, internal_error, unavailable
from router.flow.exchange import Exchange
from router.flow.flight import Reader
from router.flow.gateway import Gateway
from router.shared.limits import TenantLimits
from router.telemetry import Telemetry

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]
RawHeaders = list[tuple[bytes, bytes]]

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would gather the events
)
_READ: Final = frozenset((
    b"x-request-id", b"traceparent", b"x-session-id", b"cache-control", b"x-cache-ttl", b"content-encoding",
    b"content-length", b"authorization", b"x-api-key", b"x-tenant-id",
))  # fmt: skip
"""The headers of a request that anything here asks for; all others are passed over once."""

_LAST_WORDS: Final = 0.5  # seconds
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class BodyTooLargeError(ApiError):
    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body has more than {limit} bytes.", code="body_too_large")


class Generate:
    """One endpoint, as an ASGI application.

    - Every answer, errors included, has `x-request-id`, and what is known of X-Cache, X-Task and X-Engine.
    - A body over the limit is refused before it is read to its end.
    - When the client leaves, the work for it is cancelled at once.
    - When the server stops before the answer is whole, the client is told so: 503, or an event at the end of a stream.
    - No traceback reaches a client.
    """

    def __init__(
        self, endpoint: Endpoint, gateway: Gateway, auth: Authenticator, limits: TenantLimits, telemetry: Telemetry, *,
        max_body: int,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._gateway = gateway
        self._auth = auth
        self._limits = limits
        self._telemetry = telemetry
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: RawHeaders = [header for header in scope["headers"] if header[0] in _READ]
        request_id, traceparent, session = _correlation(headers)
        exchange = Exchange(
            endpoint=self._endpoint, request_id=request_id, begun=time.perf_counter(), traceparent=traceparent,
            session=session,
        )  # fmt: skip
        client = ClientLeaving(receive)
        try:
            await self._serve(exchange, headers, client, receive, send)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if client.left:
                exchange.outcome = "left"
            else:  # the server stops, and has waited for long enough
                client.stop()
                await self._cut_off(exchange, send)
        finally:
            client.stop()
            if exchange.permit is not None:
                exchange.permit.close()
            self._telemetry.record(exchange, time.perf_counter())

    async def _serve(
        self, exchange: Exchange, headers: RawHeaders, client: ClientLeaving, receive: Receive, send: Send
    ) -> None:
        try:
            exchange.tenant = self._auth.tenant(headers, x_api_key=self._endpoint is Endpoint.MESSAGES)
            control = _control(headers)
            if self._limits.concern(exchange.tenant):
                exchange.permit = await self._limits.ask(exchange.tenant)
                exchange.permit.check()
            body = await read_body(headers, receive, self._max_body)
            answer = await self._gateway.answer(exchange, control, body, client)
        except ApiError as error:
            client.stop()
            await self._refuse(exchange, error, send)
        except ClientLeftError:
            exchange.outcome = "left"
        except Exception:
            # The last line of defence: the server logs it, and the client gets an error without a traceback.
            client.stop()
            await self._refuse(exchange, internal_error(), send)
            raise
        else:
            exchange.status = 200
            headers = _headers(exchange)
            if isinstance(answer, Reader):
                await self._stream(answer, [*headers, *_EVENTS], client, send)
                return
            headers += _EVENTS if answer.stream else (_JSON,)
            headers.append((b"content-length", b"%d" % len(answer.body)))
            client.stop()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer.body})

    async def _refuse(self, exchange: Exchange, error: ApiError, send: Send) -> None:
        exchange.status = error.status
        exchange.outcome = "refused"
        exchange.error = error.reason
        await send_error(error, send, _headers(exchange))

    async def _cut_off(self, exchange: Exchange, send: Send) -> None:
        """Tells the client that no more will come: at once, since who does not read is not waited for."""
        error = unavailable("The router is stopping.", code="stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                if exchange.status == 0:
                    await self._refuse(exchange, error, send)
                    return
                exchange.outcome, exchange.error = "failed", error.code
                if exchange.stream:
                    await send({"type": "http.response.body", "body": error_frame(self._endpoint, error)})

    async def _stream(self, reader: Reader, headers: RawHeaders, client: ClientLeaving, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while data := await reader.next():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            client.stop()
            await send({"type": "http.response.body", "body": b""})
        finally:
            reader.close()


class ClientLeftError(Exception):
    """The client left before its request was complete."""


async def read_body(headers: RawHeaders, receive: Receive, limit: int) -> bytes:
    """The request's body. Raises ApiError (413 for more than `limit` bytes, 415 for a coded one), ClientLeftError."""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            # What it would unfold to has no bound, and engines do not take it either.
            raise ApiError(415, "The body must be sent without a Content-Encoding.", code="unsupported_encoding")
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise BodyTooLargeError(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_error(error: ApiError, send: Send, headers: RawHeaders) -> None:
    """Sends an error as the whole answer."""
    body = error.body()
    headers = [*headers, _JSON, (b"content-length", b"%d" % len(body))]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _control(headers: RawHeaders) -> Control:
    """What the client asks of the cache. Raises ApiError."""
    wishes: list[bytes] = []
    ttl = None
    for name, value in headers:
        if name == b"cache-control":
            wishes.append(value)
        elif name == b"x-cache-ttl" and ttl is None:
            ttl = value
    return read_control(b",".join(wishes), ttl) if wishes or ttl is not None else NO_WISHES


def request_id(headers: RawHeaders) -> str:
    """The client's x-request-id if it sent a sane one, else a new one."""
    return _correlation(headers)[0]


def _correlation(headers: RawHeaders) -> tuple[str, str | None, str | None]:
    """The request's id, its traceparent (https://www.w3.org/TR/trace-context/) and its session, if it has sane ones."""
    given = traceparent = session = None
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given = value.decode("ascii")
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            traceparent = value.decode("ascii")
        elif name == b"x-session-id" and SESSION.fullmatch(value):
            session = value.decode("ascii")
    # As long as a UUID, and without a system call.
    return given or randbytes(16).hex(), traceparent, session  # noqa: S311 - it identifies, and proves nothing


def _headers(exchange: Exchange) -> RawHeaders:
    """What an answer says of how it came to be; all values come from the configuration, or have been checked."""
    headers = [(b"x-request-id", exchange.request_id.encode())]
    cache = exchange.cache
    if cache is not None:
        headers.append((b"x-cache", cache.encode()))
        headers.append((b"cache-status", _cache_status(exchange)))
        if cache is not CacheStatus.BYPASS and exchange.key is not None:
            headers.append((b"x-cache-key", exchange.key.encode()))
        reason = exchange.bypass or exchange.reason
        if reason is not None:
            headers.append((b"x-cache-reason", reason.encode()))
        if exchange.age is not None:
            headers.append((b"age", b"%d" % exchange.age))
    if exchange.permit is not None:
        headers += limit_headers(exchange.permit.quota, exchange.permit.allowance)
    if exchange.task is not None:
        headers.append((b"x-task", exchange.task.encode()))
    if exchange.engine is not None:
        headers.append((b"x-engine", exchange.engine.encode()))
    if exchange.fallback is not None:
        headers.append((b"x-fallback", exchange.fallback.encode()))
    if exchange.adjusted:
        headers.append((b"x-adjusted", ", ".join(exchange.adjusted).encode()))
    return headers


def _cache_status(exchange: Exchange) -> bytes:
    """RFC 9211."""
    cache = exchange.cache
    if cache is CacheStatus.HIT or cache is CacheStatus.STALE:
        status = b"roundhouse; hit; ttl=%d; detail=local" if exchange.local else b"roundhouse; hit; ttl=%d"
        return status % (exchange.ttl or 0)
    if cache is CacheStatus.COALESCED:
        return b"roundhouse; fwd=miss; collapsed"
    if exchange.bypass is not None:
        return b"roundhouse; fwd=bypass; detail=%b" % exchange.bypass.encode()
    return b"roundhouse; fwd=stale" if exchange.reason == "expired" else b"roundhouse; fwd=uri-miss"
