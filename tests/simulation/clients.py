"""A client's request to a simulated router: what the server's cycle is to the application, without a socket.

Theory of operation. The application is given the request and the extension router.net.server.client_connection.Client,
and is begun as the server begins it (router.net.server.eager). What it sends is in the client's hands at once, unless
the client reads slowly: then there is no room for `take`, and `send` waits.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from router.net.server.client_connection import CLIENT
from tests.simulation.history import Asked
from tests.simulation.loop import Loop

PATH = "/v1/chat/completions"

Message = MutableMapping[str, Any]


class Request:
    """One request. `over` is called once, when it has ended. See Cycle for the order of what happens."""

    def __init__(
        self, loop: Loop, asked: Asked, body: bytes, *, headers: list[tuple[bytes, bytes]], pause: float,
        over: Callable[["Request"], None],
    ) -> None:  # fmt: skip
        """`pause`: seconds after each part of the answer in which the client takes no more."""
        self.asked = asked
        self.left = False
        self._loop = loop
        self._body: bytes | None = body
        self._headers = [(b"x-tenant-id", asked.tenant.encode()), *headers]
        self._pause = pause
        self._full_until = 0.0
        self._over = over
        self._task: asyncio.Task[None] | None = None
        self._watched = False
        self._disconnected = False
        self._complete = False
        self._begun = False
        self._gone: asyncio.Event | None = None

    def scope(self) -> Message:
        return {
            "type": "http", "method": "POST", "path": PATH, "headers": self._headers, "extensions": {CLIENT: self},
        }  # fmt: skip

    # -- ASGI ---------------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None and not self._disconnected:
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._disconnected:
            self._gone = asyncio.Event()
            await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        while self._is_full and not self._disconnected:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(self._full_until - self._loop.time())
        if self._disconnected:
            return
        if message["type"] == "http.response.start":
            self.begin(message["status"], b"", None)
            return
        self._begun = True
        self._write(message.get("body", b""))
        if not message.get("more_body", False):
            self._complete = True
            self._end()

    @property
    def _is_full(self) -> bool:
        return self._full_until > self._loop.time()

    def _write(self, data: bytes) -> None:
        if data:
            self.asked.body.append(data)
            if self._pause:
                self._full_until = self._loop.time() + self._pause

    def _end(self) -> None:
        asked = self.asked
        if asked.status == 504 and b'"code":"not_cached"' in b"".join(asked.body):
            asked.end("complete")
        elif asked.status >= 500 or (asked.status == 200 and asked.stream and b"data: [DONE]" not in asked.body[-1]):
            asked.end("failed")
        else:
            asked.end("complete")
        self._over(self)

    # -- router.net.server.client_connection.Client --------------------------------------------------------------------

    def watch(self) -> None:
        self._watched = True
        if self._disconnected and not self._complete and self._task is not None:
            self.left = True
            self._task.cancel()

    def stop(self) -> None:
        self._watched = False

    def begin(self, status: int, lines: bytes, length: int | None) -> None:
        self.asked.status = status
        for line in lines.lower().split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name == b"x-cache":
                self.asked.cache = value.decode().upper()

    def take(self, data: bytes) -> bool:
        if self._is_full or self._disconnected or self._complete or not self._begun:
            return False
        self._write(data)
        return True

    # -- what the server does -----------------------------------------------------------------------------------------

    def works(self, task: "asyncio.Task[None]") -> None:
        self._task = task
        if self._watched:
            self.watch()

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._loop.call_exception_handler(
                {"message": f"the application failed on {self.asked}", "exception": error}
            )
        elif not self._complete and not self._disconnected:
            self._loop.call_exception_handler({"message": f"no answer to {self.asked}"})
        self._task = None

    def leave(self) -> None:
        """The client closes its connection."""
        if self._disconnected or self._complete:
            return
        self._disconnected = True
        self.asked.end("left")
        if self._gone is not None:
            self._gone.set()
        if self._watched:
            self.watch()
        self._over(self)

    @property
    def active(self) -> bool:
        """Whether the application works on it."""
        return self._task is not None
