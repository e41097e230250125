"""A request for a WebSocket at /v1/responses: who is let in, and the response that opens the connection.

What is refused gets a response over HTTP, as any other request. A browser lets each page open a WebSocket to any
address, without a preflight, and does not hide the answers. So a page needs to be of `router.allowed_origins`.
"""

from collections.abc import Callable

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from router.api.access.auth import Authenticator
from router.api.cors import CorsPolicy
from router.api.inference.endpoint import AsgiScope, choose_request_id
from router.api.websocket.conversation import Conversation
from router.api.websocket.inner_request import Application
from router.api.websocket.session import Session
from router.core.endpoints.responses import RESPONSES
from router.errors import PERMISSION, ApiError, unavailable
from router.net.server.client_connection import UPGRADE_EXTENSION, SwitchProtocol
from router.net.server.websocket import ByteAllocation, WebSocketConnection, WebSocketLimits


class WebSocketEndpoint:
    """Opens connections; `open` raises ApiError for what is refused.

    - 401 and 503 as for a POST. Each message is authenticated again.
    - 403 for a page of an origin that is not allowed, 400 for a handshake that is none.
    - 400 where other requests, or bytes that came too early, are on the connection. 503 while the router stops.
    """

    def __init__(
        self, auth: Authenticator, cors: CorsPolicy | None, limits: WebSocketLimits,
        new_memory: Callable[[], ByteAllocation], is_draining: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`new_memory`: of what a connection remembers."""
        self._auth = auth
        self._cors = cors
        self._limits = limits
        self._new_memory = new_memory
        self._is_draining = is_draining

    def open(self, scope: AsgiScope, application: Application) -> None:
        headers = scope["headers"]
        if any(name == b"origin" for name, _ in headers) and (self._cors is None or not self._cors.allows(headers)):
            raise ApiError(403, "This origin may not use the router.", kind=PERMISSION, code="origin_not_allowed")
        self._auth.authenticate(headers, allow_x_api_key=RESPONSES.accepts_x_api_key)
        if self._is_draining():
            raise unavailable("The router is shutting down.", code="stopping")
        head = _accept(scope)
        # Without the extensions: they keep the connection's objects of HTTP alive.
        handshake = {name: value for name, value in scope.items() if name != "extensions"}
        conversation = Conversation(self._new_memory, self._limits.max_message)
        session = Session(application, handshake, conversation, self._is_draining)
        switch: SwitchProtocol = scope["extensions"][UPGRADE_EXTENSION]
        if not switch(head, WebSocketConnection(self._limits, session.serve)):
            raise ApiError(400, "A WebSocket needs a connection without other requests.", code="invalid_handshake")


def _accept(scope: AsgiScope) -> bytes:
    """The head of the response that opens the connection."""
    headers = Headers()
    for name, value in scope["headers"]:
        if name.startswith(b"sec-websocket-") and name != b"sec-websocket-extensions":
            headers[name.decode("ascii")] = value.decode("latin-1")
    headers["Connection"], headers["Upgrade"] = "Upgrade", "websocket"  # the server has taken these out
    response = ServerProtocol().accept(Request(scope["path"], headers))
    if response.status_code != 101:
        raise ApiError(400, "The handshake is not one of a WebSocket of version 13.", code="invalid_handshake")
    response.headers["x-request-id"] = choose_request_id(scope["headers"])
    return response.serialize()
