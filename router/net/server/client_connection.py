"""What an application can do with its client beyond ASGI: extensions in the scope's `extensions`.

ASGI's `receive` reports a disconnect only to a coroutine that awaits it, which takes a second task for each request.
ASGI's `send` has to be awaited, so a task would have to be woken for each part of a stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]

CLIENT_EXTENSION: Final = "roundhouse.client"
"""The extension's name; its value is a ClientConnection."""

UPGRADE_EXTENSION: Final = "roundhouse.upgrade"
"""The name of an extension that only a request for a WebSocket has; its value is a SwitchProtocol."""


class NextProtocol(asyncio.Protocol):
    """What takes a connection over from HTTP."""

    def attach(self, transport: asyncio.Transport, connections: set[Any], tasks: "set[asyncio.Task[Any]]") -> None:
        """`connections` and `tasks`: of the server, which waits for them when it stops. It is among `connections`."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """The server stops: the connection is to close after what it has begun."""
        raise NotImplementedError


SwitchProtocol = Callable[[bytes, NextProtocol], bool]
"""Sends the head of a 101 in place of a response, and gives the connection to another protocol.

False: nothing has happened, since the connection closes or has other requests.
"""


class ClientConnection(Protocol):
    """Cancels the request's task when the client disconnects; `cancelled_by_disconnect` then gives the reason.

    - Nothing is cancelled before `cancel_on_disconnect`, after `ignore_disconnect`, or after the complete response.
    - If the client has already disconnected, `cancel_on_disconnect` cancels at once.
    """

    cancelled_by_disconnect: bool

    def cancel_on_disconnect(self) -> None:
        """From now on, a disconnect cancels the request's task."""

    def ignore_disconnect(self) -> None:
        """From now on, a disconnect cancels nothing."""

    def allow_slow_body(self, bytes_per_second: int) -> None:
        """From now on, the body may take longer than the timeout if it arrives at this rate; silence may not."""

    def add_headers(self, lines: bytes) -> None:
        """Adds header lines in wire format to the response, whatever it will be. To be called before it starts."""

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        """Starts a response in place of ASGI's `http.response.start`; the body follows with `send`.

        `header_bytes`: headers in wire format, as router.net.server.cycle.header_lines makes them, without
        `connection` and the framing headers. `content_length`: bytes of the body; None if unknown.
        """

    def can_break_off(self) -> bool:
        """Whether its client can distinguish an aborted response without a length from a complete one."""

    def break_off(self) -> None:
        """Ends a started response before it is complete: closes the connection after what was sent."""

    def try_send(self, data: bytes) -> bool:
        """Sends a part of a started response. False: nothing was sent, and `send` has to be awaited instead."""
