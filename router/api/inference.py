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
from router.api.response_headers import JSON, Heading, RawHeaders
from router.core.cache.cache_control import NO_WISHES, Control, read_control
from router.core.endpoints.error_format import error_frame
from router.core.routing.affinity import SESSION
from router.core.types import Endpoint
from router.errors import ApiError, internal_error, unavailable
from router.flow.body_budget import BodyBudget, HeldBody
from router.flow.exchange import Exchange, new_request_id
from router.flow.gateway import Gateway
from router.flow.inflight import Reader
from router.net.server.client_connection import CLIENT, Client, Receive
from router.net.server.cycle import header_lines
from router.shared.rate_limits import TenantLimits
from router.telemetry import Telemetry

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

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
    - A body over the limit is refused before it is read to its end, and so is one for which the process holds too much.
    - When the client leaves, the work for it is cancelled at once.
    - When the server stops before the answer is whole, the client is told so: 503, or an event at the end of a stream.
    - No traceback reaches a client.
    """

    def __init__(
        self, endpoint: Endpoint, gateway: Gateway, auth: Authenticator, limits: TenantLimits, telemetry: Telemetry,
        bodies: BodyBudget, *, max_body: int, max_bodies: int,
    ) -> None:  # fmt: skip
        """`max_body`: bytes of one body; `max_bodies`: of all that this process holds, those of other endpoints too."""
        self._endpoint = endpoint
        self._gateway = gateway
        self._auth = auth
        self._limits = limits
        self._telemetry = telemetry
        self._bodies = bodies
        self._max_body = max_body
        self._max_bodies = max_bodies
        self._heading = Heading()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: RawHeaders = [header for header in scope["headers"] if header[0] in _READ]
        given, traceparent, session = _correlation(headers)
        held = HeldBody(self._bodies, self._max_bodies)
        exchange = Exchange(
            endpoint=self._endpoint, request_id=given or new_request_id(), named_by_client=given is not None,
            begun=time.perf_counter(), traceparent=traceparent, session=session, body=held,
        )  # fmt: skip
        client: Client = scope["extensions"][CLIENT]
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
                await self._cut_off(exchange, client, send)
        finally:
            held.release()
            if exchange.permit is not None:
                exchange.permit.close()
            self._telemetry.record(exchange, time.perf_counter())

    async def _serve(
        self, exchange: Exchange, headers: RawHeaders, client: Client, receive: Receive, send: Send
    ) -> None:
        try:
            exchange.tenant = self._auth.tenant(headers, x_api_key=self._endpoint is Endpoint.MESSAGES)
            control = _control(headers)
            if self._limits.concern(exchange.tenant):
                exchange.permit = await self._limits.ask(exchange.tenant)
                exchange.permit.check()
            body = await read_body(headers, receive, self._max_body, exchange.body)
            answer = await self._gateway.answer(exchange, control, body, client)
        except ApiError as error:
            client.stop()
            await self._refuse(exchange, error, client, send)
        except ClientLeftError:
            exchange.outcome = "left"
        except Exception:
            # The last line of defence: the server logs it, and the client gets an error without a traceback.
            client.stop()
            await self._refuse(exchange, internal_error(), client, send)
            raise
        else:
            exchange.status = 200
            if isinstance(answer, Reader):
                await self._stream(exchange, answer, client, send)
            else:
                client.begin(200, self._heading.lines(exchange), len(answer.body))
                await send({"type": "http.response.body", "body": answer.body})

    async def _refuse(self, exchange: Exchange, error: ApiError, client: Client, send: Send) -> None:
        exchange.status = error.status
        exchange.outcome = "refused"
        exchange.error = error.reason
        body = error.body()
        client.begin(error.status, self._heading.lines(exchange) + header_lines(_advice(error)), len(body))
        await send({"type": "http.response.body", "body": body})

    async def _cut_off(self, exchange: Exchange, client: Client, send: Send) -> None:
        """Tells the client that no more will come: at once, since who does not read is not waited for."""
        error = unavailable("The router is stopping.", code="stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                if exchange.status == 0:
                    await self._refuse(exchange, error, client, send)
                    return
                exchange.outcome, exchange.error = "failed", error.code
                if exchange.stream:
                    await send({"type": "http.response.body", "body": error_frame(self._endpoint, error)})

    async def _stream(self, exchange: Exchange, reader: Reader, client: Client, send: Send) -> None:
        try:
            client.begin(200, self._heading.lines(exchange), None)
            while not reader.over:
                data = await reader.next(client.take)
                await send({"type": "http.response.body", "body": data, "more_body": not reader.over})
        finally:
            reader.close()


class ClientLeftError(Exception):
    """The client left before its request was complete."""


async def read_body(headers: RawHeaders, receive: Receive, limit: int, held: HeldBody | None = None) -> bytes:
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
            if held is not None:
                held.check(int(value))
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
        if held is not None:
            held.take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_error(error: ApiError, send: Send, headers: RawHeaders) -> None:
    """Sends an error as the whole answer."""
    body = error.body()
    headers = [*headers, JSON, (b"content-length", b"%d" % len(body)), *_advice(error)]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _advice(error: ApiError) -> RawHeaders:
    """What a client is to do about an error."""
    headers: RawHeaders = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


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
    return _correlation(headers)[0] or new_request_id()


def _correlation(headers: RawHeaders) -> tuple[str | None, str | None, str | None]:
    """The client's id for the request, its traceparent and its session, if it has sane ones.

    Source: https://www.w3.org/TR/trace-context/.
    """
    given = traceparent = session = None
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given = value.decode("ascii")
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            traceparent = value.decode("ascii")
        elif name == b"x-session-id" and SESSION.fullmatch(value):
            session = value.decode("ascii")
    return given, traceparent, session
