"""What an application can have of its client beyond what ASGI gives it: an extension, in the scope's `extensions`.

`receive` tells that a client has left as well, but only to who waits for it, and that would be a task beside every
request; and `send` has to be awaited, so that whoever passes a part of a stream on would have to be waked for it.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]

CLIENT_EXTENSION: Final = "roundhouse.client"
"""The extension's name; what is under it is a Client."""


class ClientConnection(Protocol):
    """Cancels the task that works for it when it leaves; `left` then tells why it was cancelled.

    - Nothing is cancelled before `watch`, after `stop`, or once the answer is whole.
    - A client that has left before `watch` leaves then.
    """

    cancelled_by_disconnect: bool

    def cancel_on_disconnect(self) -> None:
        """From now on, the request's task is cancelled when the client leaves."""

    def ignore_disconnect(self) -> None:
        """From now on, it is not."""

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        """Begins an answer, in the place of ASGI's `http.response.start`; the body follows by `send`.

        `lines` are the headers as they are sent, from router.net.server.cycle.header_lines, without those that frame
        the body; `length`: bytes of the body, None where that is not known yet.
        """

    def try_send(self, data: bytes) -> bool:
        """Sends a part of an answer that has been begun; False where that has to wait, and nothing was sent."""
