"""The routes of the dashboard: its pages and files, its sessions, and its events."""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from router.api.access.admin_access import SIGN_IN_PATH, AdminAccess, comes_from_own_origin, forbidden
from router.api.access.auth import invalid_key
from router.api.access.login_limiter import LoginLimiter
from router.api.access.sessions import SESSION_COOKIE, SESSION_SECONDS
from router.api.dashboard.event_hub import EventHub
from router.api.inference.endpoint import ClientDisconnectedError, read_body
from router.api.ops.routes import api_error
from router.dashboard.pages import STATIC_FILES, closed_page, login_page, sign_in_page
from router.errors import NOT_FOUND, RATE_LIMIT, ApiError, unavailable
from router.net.redis.pipeline import RedisDownError
from router.net.server.client_connection import CLIENT_EXTENSION, ClientConnection

MAX_FORM: Final = 4096
"""Bytes of a login form."""

MAX_STREAM: Final = 3600.0
"""Seconds after which a stream of events ends. The browser connects again, if its session still holds."""

SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_HTML: Final = "text/html; charset=utf-8"
_NOT_STORED: Final = {"cache-control": "no-store"}
_HOME: Final = "/dashboard"
_LOGIN: Final = "/dashboard/login"

DashboardHandler = Callable[[Request], Awaitable[Response]]


class DashboardRoutes:
    """Everything under /dashboard.

    - Without a session, only the login and the static files are served, which say nothing about this router.
    - Every response has a strict Content-Security-Policy, and no page is stored by a browser or proxy.
    - No URL, log line or page ever has a key.
    """

    def __init__(
        self, *, access: AdminAccess, limiter: LoginLimiter, hub: EventHub, render_page: Callable[[], bytes]
    ) -> None:
        """`render_page` makes the page for a viewer who is signed in."""
        self._access = access
        self._limiter = limiter
        self._hub = hub
        self._render_page = render_page
        self._tags: Mapping[str, str] = {name: _entity_tag(content) for name, (_, content) in STATIC_FILES.items()}

    def routes(self) -> list[Route]:
        handlers: list[tuple[str, str, DashboardHandler]] = [
            ("GET", _HOME, self.page),
            ("GET", _LOGIN, self.login_form),
            ("POST", _LOGIN, self.login),
            ("GET", SIGN_IN_PATH, self.sign_in_form),
            ("POST", SIGN_IN_PATH, self.sign_in),
            ("POST", "/dashboard/logout", self.logout),
            ("GET", "/dashboard/static/{name}", self.static_file),
            ("GET", "/dashboard/events", self.events),
        ]
        return [Route(path, _with_security_headers(handler), methods=[method]) for method, path, handler in handlers]

    async def page(self, request: Request) -> Response:
        if not self._access.is_open:
            return _page(closed_page(), 403)
        if not await self._access.has_access(request):
            return _redirect(_LOGIN)
        return _page(self._render_page())

    async def login_form(self, request: Request) -> Response:
        if not self._access.is_open:
            return _page(closed_page(), 403)
        return _redirect(_HOME) if await self._access.has_access(request) else _page(login_page())

    async def login(self, request: Request) -> Response:
        """Starts a session for the form field `key`."""
        if not self._access.is_open:
            return _page(closed_page(), 403)
        if comes_from_own_origin(request) is False:
            raise forbidden()
        address = _address(request)
        key = await _form_field(request, "key")
        # After the last wait before the key is checked, so that attempts at the same time are all counted.
        if (wait := self._limiter.retry_after(address)) > 0:
            page = _page(login_page("Too many attempts. Please wait a minute."), 429)
            page.headers["retry-after"] = str(math.ceil(wait))
            return page
        token = await self._access.sign_in(key)
        if token is None:
            self._limiter.record_failure(address)
            return _page(login_page("This is not an admin key of this router."), 401)
        response = _redirect(_HOME)
        _set_session(response, request, token)
        return response

    async def sign_in_form(self, _: Request) -> Response:
        """Its script sends the token of the link, whether or not there is a session: the link has to be used up."""
        return _page(sign_in_page()) if self._access.is_open else _page(closed_page(), 403)

    async def sign_in(self, request: Request) -> Response:
        """Starts a session for the form field `token`, that of a link, which works once."""
        if comes_from_own_origin(request) is False:
            raise forbidden()
        address = _address(request)
        link_token = (await _form_field(request, "token")).decode("utf-8")
        if (wait := self._limiter.retry_after(address)) > 0:
            raise ApiError(
                429, "Too many attempts. Please wait a minute.", kind=RATE_LIMIT, code="too_many_attempts",
                retry_after=math.ceil(wait),
            )  # fmt: skip
        # Counted before the wait, so that attempts at the same time are all counted.
        self._limiter.record_failure(address)
        try:
            token = await self._access.sign_in_with_link(link_token)
        except RedisDownError:
            self._limiter.forgive(address)
            message = "Redis does not answer, so the link cannot be checked. Open it again once Redis is back."
            raise unavailable(message, code="redis_down", retry_after=1) from None
        if token is None:
            raise invalid_key("The link was used already or is too old; `roundhouse dashboard` prints another.")
        self._limiter.forgive(address)
        response = Response(status_code=204, headers=_NOT_STORED)
        _set_session(response, request, token)
        return response

    async def logout(self, request: Request) -> Response:
        """Deletes the cookie."""
        if comes_from_own_origin(request) is False:
            raise forbidden()
        response = _redirect(_LOGIN)
        response.delete_cookie(SESSION_COOKIE, path="/", secure=_is_secure(request), httponly=True, samesite="strict")
        return response

    async def static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC_FILES:
            raise ApiError(404, "There is no such file.", kind=NOT_FOUND, code="not_found")
        content_type, content = STATIC_FILES[name]
        # Asked for again each time, so that a page never gets the script of another version.
        headers = {"cache-control": "no-cache", "etag": self._tags[name]}
        if request.headers.get("if-none-match") == self._tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=content_type)

    async def events(self, request: Request) -> Response:
        await self._access.check(request)
        if request.method == "HEAD":
            return Response(headers=_NOT_STORED, media_type=EventStream.media_type)
        return EventStream(self._hub)


class EventStream(Response):
    """A response that ends when its viewer disconnects, when the hub closes, or after MAX_STREAM."""

    media_type = "text/event-stream"

    def __init__(self, hub: EventHub) -> None:
        super().__init__(headers={**_NOT_STORED, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._viewer = hub.subscribe()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: ClientConnection = scope["extensions"][CLIENT_EXTENSION]
        try:
            client.cancel_on_disconnect()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            ends_at = time.monotonic() + MAX_STREAM
            while time.monotonic() < ends_at and (data := await self._viewer.take()) is not None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body"})
        except asyncio.CancelledError:
            if not client.cancelled_by_disconnect:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()  # the disconnect is handled here
        finally:
            self._hub.unsubscribe(self._viewer)


def _with_security_headers(handler: DashboardHandler) -> DashboardHandler:
    async def guarded(request: Request) -> Response:
        try:
            response = await handler(request)
        except ApiError as error:
            response = await api_error(request, error)
        except ClientDisconnectedError:
            response = Response(status_code=400)  # is never read
        response.headers.update(SECURITY_HEADERS)
        return response

    return guarded


def _page(content: bytes, status: int = 200) -> Response:
    return Response(content, status, _NOT_STORED, media_type=_HTML)


def _redirect(path: str) -> Response:
    return RedirectResponse(path, 303, _NOT_STORED)


def _set_session(response: Response, request: Request, token: str) -> None:
    response.set_cookie(
        SESSION_COOKIE, token, max_age=SESSION_SECONDS, path="/", secure=_is_secure(request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _form_field(request: Request, name: str) -> bytes:
    """A field of a form; empty if it is not there exactly once. Raises ApiError, ClientDisconnectedError."""
    body = await read_body(request.scope["headers"], request.receive, MAX_FORM)
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8, encoding="utf-8", errors="strict")
    except ValueError:  # no form, or too many fields
        return b""
    values = fields.get(name, [])
    return values[0].strip().encode() if len(values) == 1 else b""


def _is_secure(request: Request) -> bool:
    """Whether the browser uses TLS, to the router itself or to a proxy."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def _entity_tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'
