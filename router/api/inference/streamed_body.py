"""A response whose body is read in pieces while it is sent."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.flow.exchange import Exchange
from router.net.server.client_connection import CLIENT_EXTENSION, ClientConnection


class BrokenBodyError(Exception):
    """The rest of a body cannot be read."""


class StreamedBody(Protocol):
    """`headers`: of the response, with the length of the body."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raises BrokenBodyError."""

    async def aclose(self) -> None:
        """Is called once, after the last piece or before it."""


class StreamedBodyResponse(Response):
    """- Reading stops when the client disconnects, and waits for a slow one.
    - A body that breaks off closes the connection, so that the client does not take it for complete.
    - The body is closed, and `end` called, however it ends.
    """

    def __init__(self, body: StreamedBody, exchange: Exchange, end: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-store", **body.headers})
        self._streamed = body
        self._exchange = exchange
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: ClientConnection = scope["extensions"][CLIENT_EXTENSION]
        try:
            client.cancel_on_disconnect()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            data = await self._streamed.read() if scope["method"] != "HEAD" else b""
            while data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                data = await self._streamed.read()
            await send({"type": "http.response.body", "body": b""})
        except BrokenBodyError:
            self._exchange.outcome, self._exchange.error_reason = "failed", "broken_body"
            client.break_off()
        except asyncio.CancelledError:
            self._exchange.outcome = "left"
            task = asyncio.current_task()
            if not client.cancelled_by_disconnect or task is None:
                raise
            task.uncancel()
        finally:
            try:
                await self._streamed.aclose()
            finally:
                self._end()
