"""Notices that a client has left while somebody works for it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeaving:
    """Cancels the task that works for a client when the client leaves; `left` then tells why it was cancelled.

    It costs one task a request, and none where nothing has to be waited for: `watch` begins it, `stop` ends it, and
    must be called before the answer's last part is sent, since a finished answer looks like a client that left.
    """

    __slots__ = ("_receive", "_watcher", "left")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self.left = False

    def watch(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        self._watcher = asyncio.get_running_loop().create_task(self._wait(worker))

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _wait(self, worker: "asyncio.Task[Any]") -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        worker.cancel()
