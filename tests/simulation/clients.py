"""A client's request to a simulated router: the counterpart of the server's cycle, without a socket.

Theory of operation. The application gets the request and the extension `client_connection.ClientConnection` of
router.net.server, and is started as the server starts it (router.net.server.eager). Its output reaches the client at
once. If the client reads slowly, `try_send` refuses data and `send` waits.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from router.net.server.client_connection import CLIENT_EXTENSION
from tests.simulation.history import RequestRecord
from tests.simulation.loop import VirtualLoop

PATH = "/v1/chat/completions"

LIMIT: Final = 5
"""Tokens, of the requests that have a limit."""

Message = MutableMapping[str, Any]


def request_body(question: int, *, limited: bool) -> dict[str, Any]:
    """The fields that are in the cache key."""
    messages = [{"role": "user", "content": f"question {question}."}]
    body = {"model": "llama", "messages": messages, "temperature": 0}
    return body | {"max_tokens": LIMIT} if limited else body


class SimulatedRequest:
    """One request. `on_ended` is called once, when it has ended. See Cycle for the order of events."""

    def __init__(
        self,
        loop: VirtualLoop,
        record: RequestRecord,
        body: bytes,
        *,
        headers: list[tuple[bytes, bytes]],
        pause: float,
        on_ended: Callable[["SimulatedRequest"], None],
        path: str = PATH,
    ) -> None:
        """`pause`: see RequestRecord."""
        self.record = record
        record.pause = pause
        self._path = path
        self.cancelled_by_disconnect = False
        self._loop = loop
        self._body: bytes | None = body
        self._headers = [(b"x-tenant-id", record.tenant.encode()), *headers]
        self._full_until = 0.0
        self._on_ended = on_ended
        self._task: asyncio.Task[None] | None = None
        self._cancel_enabled = False
        self._client_left = False
        self._complete = False
        self._begun = False
        self._left_event: asyncio.Event | None = None

    def scope(self) -> Message:
        return {
            "type": "http",
            "method": "POST",
            "path": self._path,
            "headers": self._headers,
            "extensions": {CLIENT_EXTENSION: self},
        }

    # -- ASGI ---------------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None and not self._client_left:
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._client_left:
            self._left_event = asyncio.Event()
            await self._left_event.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        while self._is_full and not self._client_left:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(self._full_until - self._loop.time())
        if self._client_left:
            return
        if message["type"] == "http.response.start":
            self.start_response(message["status"], b"", None)
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
            self.record.body.append(data)
            if self.record.pause:
                self._full_until = self._loop.time() + self.record.pause

    def _end(self) -> None:
        record = self.record
        if record.status == 504 and b'"code":"not_cached"' in b"".join(record.body):
            record.end("complete")
        elif record.status >= 500 or (
            record.status == 200 and record.stream and b"data: [DONE]" not in record.body[-1]
        ):
            record.end("failed")
        else:
            record.end("complete")
        self._on_ended(self)

    # -- router.net.server.client_connection.ClientConnection ----------------------------------------------------------

    def cancel_on_disconnect(self) -> None:
        self._cancel_enabled = True
        if self._client_left and not self._complete and self._task is not None:
            self.cancelled_by_disconnect = True
            self._task.cancel()

    def ignore_disconnect(self) -> None:
        self._cancel_enabled = False

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        self.record.status = status
        for line in header_bytes.lower().split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name == b"x-cache":
                self.record.cache = value.decode().upper()

    def can_break_off(self) -> bool:
        return True

    def break_off(self) -> None:
        self._complete = True
        self._end()

    def try_send(self, data: bytes) -> bool:
        if self._is_full or self._client_left or self._complete or not self._begun:
            return False
        self._write(data)
        return True

    # -- called in place of the server --------------------------------------------------------------------------------

    def on_task_started(self, task: "asyncio.Task[None]") -> None:
        self._task = task
        if self._cancel_enabled:
            self.cancel_on_disconnect()

    def on_app_done(self, error: BaseException | None) -> None:
        if error is not None:
            self._loop.call_exception_handler(
                {"message": f"the application failed on {self.record}", "exception": error}
            )
        elif not self._complete and not self._client_left:
            self._loop.call_exception_handler({"message": f"no answer to {self.record}"})
        self._task = None

    def on_disconnect(self) -> None:
        if self._client_left or self._complete:
            return
        self._client_left = True
        self.record.end("left")
        if self._left_event is not None:
            self._left_event.set()
        if self._cancel_enabled:
            self.cancel_on_disconnect()
        self._on_ended(self)

    @property
    def active(self) -> bool:
        return self._task is not None
