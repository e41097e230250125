"""Answers that depend on the method alone: preflights of browsers, OPTIONS, and 405 at the endpoints that generate.

A WebSocket at /v1/responses is opened, or gets 426 (RFC 9110, section 15.5.22): Codex falls back to HTTP at no other
status.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from router.api.cors import CorsPolicy, is_private
from router.api.inference.endpoint import AsgiScope, AsgiSend, choose_request_id, send_error
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.table import errors_at
from router.errors import ApiError
from router.net.server.client_connection import CLIENT_EXTENSION, UPGRADE_EXTENSION, AsgiReceive, ClientConnection

ALLOW_POST: Final = [(b"allow", b"OPTIONS, POST")]
_UPGRADE: Final = [(b"upgrade", b"HTTP/1.1"), *ALLOW_POST]
_WEBSOCKET_VERSION: Final = [(b"sec-websocket-version", b"13")]

AsgiApplication = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]
OpenWebSocket = Callable[[AsgiScope, AsgiApplication], None]
"""Opens a WebSocket whose messages become requests to the application. Raises ApiError for what is refused."""


def answers_preflight(cors: CorsPolicy, scope: AsgiScope) -> bool:
    """Adds the header lines for browsers to the response. Returns whether they are all that the request wants.

    A preflight needs neither a key nor a path that exists: a page can read an error only if it may send the request.
    """
    if is_private(scope["path"]):
        return False
    client: ClientConnection = scope["extensions"][CLIENT_EXTENSION]
    preflight = cors.preflight_lines(scope["headers"]) if scope["method"] == "OPTIONS" else None
    client.add_headers(cors.response_lines(scope["headers"]) if preflight is None else preflight)
    return preflight is not None


async def send_no_content(scope: AsgiScope, send: AsgiSend, headers: list[tuple[bytes, bytes]]) -> None:
    send = with_request_id(scope, send)
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body"})


async def answer_other_method(
    scope: AsgiScope, send: AsgiSend, open_websocket: OpenWebSocket | None, application: AsgiApplication
) -> None:
    """At an endpoint that generates, for other methods than POST and OPTIONS.

    `open_websocket`: None if there are no WebSockets; `application` gets their requests.
    """
    error, headers = _method_not_allowed(scope), ALLOW_POST
    if _asks_for_websocket(scope):
        try:
            if open_websocket is not None and UPGRADE_EXTENSION in scope["extensions"]:
                open_websocket(scope, application)
                return
            error, headers = _websocket_not_served(scope), _UPGRADE
            client: ClientConnection = scope["extensions"][CLIENT_EXTENSION]
            client.add_headers(b"connection: upgrade\r\n")  # it has to go with Upgrade (RFC 9110, section 7.8)
        except ApiError as refusal:
            error, headers = refusal, _WEBSOCKET_VERSION
    request_id = choose_request_id(scope["headers"])
    headers = [*headers, (b"x-request-id", request_id.encode("ascii"))]
    await send_error(error, send, headers, errors_at(scope["path"]).body(error, request_id))


def _method_not_allowed(scope: AsgiScope) -> ApiError:
    return ApiError(405, f"{scope['method']} is not allowed on {scope['path']}.", code="method_not_allowed")


def _websocket_not_served(scope: AsgiScope) -> ApiError:
    message = f"{scope['path']} is not served as a WebSocket here. Use HTTP: POST {scope['path']}."
    return ApiError(426, message, code="websocket_not_served")


def _asks_for_websocket(scope: AsgiScope) -> bool:
    """By a header that every proxy passes on. `Upgrade` is gone by now, here and behind proxies without WebSockets."""
    return (
        scope["method"] == "GET"
        and scope["path"] == RESPONSES.path
        and any(name == b"sec-websocket-key" for name, _ in scope["headers"])
    )


def with_request_id(scope: AsgiScope, send: AsgiSend) -> AsgiSend:
    header = (b"x-request-id", choose_request_id(scope["headers"]).encode("ascii"))

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            if not any(name == header[0] for name, _ in headers):
                message["headers"] = [*headers, header]
        await send(message)

    return send_with_id
