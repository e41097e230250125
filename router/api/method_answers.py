"""Answers that depend on the method alone: preflights of browsers, OPTIONS, and 405 at the endpoints that generate."""

from typing import Any, Final

from router.api.cors import CorsPolicy, is_private
from router.api.inference.endpoint import AsgiScope, AsgiSend, choose_request_id, send_error
from router.core.endpoints.table import errors_at
from router.errors import ApiError
from router.net.server.client_connection import CLIENT_EXTENSION, ClientConnection

ALLOW_POST: Final = [(b"allow", b"OPTIONS, POST")]


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


async def method_not_allowed(scope: AsgiScope, send: AsgiSend) -> None:
    error = ApiError(405, f"{scope['method']} is not allowed on {scope['path']}.", code="method_not_allowed")
    request_id = choose_request_id(scope["headers"])
    headers = [*ALLOW_POST, (b"x-request-id", request_id.encode("ascii"))]
    await send_error(error, send, headers, errors_at(scope["path"]).body(error, request_id))


def with_request_id(scope: AsgiScope, send: AsgiSend) -> AsgiSend:
    header = (b"x-request-id", choose_request_id(scope["headers"]).encode("ascii"))

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return send_with_id
