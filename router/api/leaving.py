"""How an application learns that its client has left: an extension of ASGI, in the scope's `extensions`.

`receive` tells it too, but only to who waits for it, and that would be a task of its own beside every request.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

LEAVING: Final = "roundhouse.leaving"
"""The extension's name; what is under it is a Leaving."""


class Leaving(Protocol):
    """Cancels the task that works for a client when the client leaves; `left` then tells why it was cancelled.

    - Nothing is cancelled before `watch`, after `stop`, or once the answer is whole.
    - A client that has left before `watch` leaves then.
    """

    left: bool

    def watch(self) -> None:
        """From now on, the request's task is cancelled when the client leaves."""

    def stop(self) -> None:
        """From now on, it is not."""
