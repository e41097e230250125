"""What the client of a stream gets while its request waits for an engine to start: comments.

A proxy cuts a connection that is silent for a minute, and a start can take several. A line that begins with a colon is
a comment, which every reader of an event stream ignores (HTML standard, section 9.2.6). The status is sent with the
first comment, so an error that comes after that is an event in the stream.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import Any, Final, Protocol

from router.flow.exchange import Exchange

COMMENT_INTERVAL: Final = 5.0
"""Seconds between two comments."""


class ClientOfRequest(Protocol):
    """The part of a ClientConnection that the flow needs."""

    def cancel_on_disconnect(self) -> None:
        """From now on, the request's task is cancelled when the client disconnects."""

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        """Starts the response; see ClientConnection."""


Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
StartProgress = Callable[[Exchange, ClientOfRequest, str, Callable[[], bool]], "ProgressComments | None"]
"""Reports to the client of an exchange that it waits for an engine of a model, once the function says that it does;
None: there is no way to."""


class ProgressComments:
    """Sends comments to the client of a stream, until `stop`. From the first on, the exchange has its status.

    A request may begin to wait when an engine that was up is found gone, so whether it does is looked at repeatedly.
    """

    def __init__(
        self, send_comments: Callable[[], Coroutine[None, None, None]], waits: Callable[[], bool], first_after: float
    ) -> None:
        self._send_comments = send_comments
        self._waits = waits
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(first_after, self._on_timer)

    def _on_timer(self) -> None:
        loop = asyncio.get_running_loop()
        if self._waits():
            self._task = loop.create_task(self._send_comments())
        else:
            self._timer = loop.call_later(COMMENT_INTERVAL, self._on_timer)

    def stop(self) -> None:
        """Nothing is sent after this returns."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


class ProgressReporter:
    """Starts the comments for requests that wait."""

    def __init__(self, render_headers: Callable[[Exchange], bytes], first_after: float) -> None:
        """`render_headers`: the header lines of a response with status 200.

        `first_after`: seconds until the status and the first comment are sent. An error before that has its own status.
        """
        self._render_headers = render_headers
        self._first_after = first_after

    def start(
        self, exchange: Exchange, client: ClientOfRequest, model: str, waits: Callable[[], bool]
    ) -> ProgressComments | None:
        if not exchange.stream or exchange.send is None:
            return None
        send_comments = partial(_send_comments, exchange, client, exchange.send, model, self._render_headers)
        return ProgressComments(send_comments, waits, self._first_after)


async def _send_comments(
    exchange: Exchange, client: ClientOfRequest, send: Send, model: str, render_headers: Callable[[Exchange], bytes]
) -> None:
    if exchange.status == 0:  # else an earlier attempt of this request has begun the response
        exchange.status = 200
        client.start_response(200, render_headers(exchange), None)
    while True:
        waited = time.perf_counter() - exchange.started_at
        comment = b": waiting for an engine of %b to start, %d s\n\n" % (model.encode(), waited)
        await send({"type": "http.response.body", "body": comment, "more_body": True})
        await asyncio.sleep(COMMENT_INTERVAL)
