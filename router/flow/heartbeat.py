"""What the client of a stream gets while there is nothing else to send: comments, or pings at /v1/messages.

A proxy cuts a connection that is silent for a minute or so, and a first token can take longer: in the queue, during the
prefill of a long prompt, while an engine starts. A line that begins with a colon is a comment, which every reader of an
event stream ignores (HTML standard, section 9.2.6). The status is sent with the first comment, so an error that comes
after that is an event in the stream.
"""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final

from router.flow.caller import NO_HEARTBEAT, Caller, RunningHeartbeat
from router.flow.exchange import Exchange

START_COMMENT_INTERVAL: Final = 5.0
"""Seconds between two comments while an engine starts: a person may read how long it takes."""

_TOLERANCE: Final = 0.001  # seconds; a timer may be early by the resolution of the clock


class Heartbeats:
    """Starts the heartbeat of each request for a stream that may wait."""

    def __init__(self, render_headers: Callable[[Exchange], bytes], *, interval: float, start_wait: float) -> None:
        """`render_headers`: the header lines of a response with status 200.

        `interval`: seconds of silence; 0: comments only while an engine starts. `start_wait`: seconds until the first
        one of those. An error before the first comment has its own status.
        """
        self._render_headers = render_headers
        self.interval = interval
        self.start_wait = start_wait

    def start(self, exchange: Exchange, caller: Caller) -> RunningHeartbeat:
        """To be stopped at the end of the request."""
        return Heartbeat(self, exchange, caller) if exchange.stream else NO_HEARTBEAT

    def render(self, exchange: Exchange) -> bytes:
        return self._render_headers(exchange)


class Heartbeat(RunningHeartbeat):
    """Sends comments to the client of one stream.

    - Before the first token, one after each `interval` of silence. From the first on, the exchange has its status.
    - After the first token, silence is noticed at the next tick of the timer, so a comment comes after at most twice
      the time. A chunk costs nothing.
    - While the request waits for an engine to start, comments say so, and are more frequent.
    - An engine's comments before its first token are passed on once the response has begun, and count as its own.
    - Comments stand between events, since what is sent are complete events.
    - Nothing is sent after `stop`.
    """

    __slots__ = (
        "_caller", "_exchange", "_model", "_position", "_seen", "_sent_at", "_shared", "_task", "_timer", "_waits",
    )  # fmt: skip

    def __init__(self, shared: Heartbeats, exchange: Exchange, caller: Caller) -> None:
        self._shared = shared
        self._exchange = exchange
        self._caller = caller
        self._model = ""
        self._waits: Callable[[], bool] | None = None
        self._position: Callable[[], int] | None = None
        self._seen = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = asyncio.get_running_loop().time()
        if shared.interval:
            self._set_timer(shared.interval)

    def expect_start(self, model: str, waits: Callable[[], bool]) -> None:
        """The request may wait for an engine of this model to start; `waits`: whether it does.

        It may begin to when an engine that was up is found gone, so this is looked at repeatedly.
        """
        if self._waits is None:
            self._set_timer(self._shared.start_wait)
        self._model, self._waits = model, waits

    def follow(self, position: Callable[[], int]) -> None:
        """The stream has its first token; `position` is a number that changes when there is more of it."""
        self._position, self._waits = position, None

    def pass_comments(self, comments: bytes) -> None:
        """Of an engine; the stream has no token yet. They are dropped if the response has not begun."""
        if self._caller.has_begun:
            self._caller.connection.try_send(comments)
            self._sent_at = asyncio.get_running_loop().time()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._position = self._waits = None  # they refer to the delivery, which refers to this

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        now, interval = asyncio.get_running_loop().time(), self._shared.interval or inf
        if self._waits is not None and self._waits():
            waited = time.perf_counter() - self._exchange.started_at
            self._beat(b": waiting for an engine of %b to start, %d s\n\n" % (self._model.encode(), waited), now)
        elif self._has_progress():
            self._sent_at = now
        elif now - self._sent_at >= interval - _TOLERANCE:
            streaming = self._exchange.endpoint.streaming
            assert streaming is not None  # else the exchange has no stream
            self._beat(streaming.heartbeat, now)
        rest = self._sent_at + interval - now  # less than all of it after an engine's comment
        if self._waits is not None:
            rest = min(rest, START_COMMENT_INTERVAL)
        if rest < inf:
            self._set_timer(rest)

    def _has_progress(self) -> bool:
        if self._position is None:
            return False
        seen, self._seen = self._seen, self._position()
        return self._seen != seen

    def _beat(self, comment: bytes, now: float) -> None:
        self._sent_at = now
        if self._caller.has_begun:
            # A client that does not read has bytes to read: then nothing is sent.
            self._caller.connection.try_send(comment)
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._start_response(comment))

    async def _start_response(self, comment: bytes) -> None:
        exchange, caller = self._exchange, self._caller
        if not caller.has_begun:  # else the response has begun since the task was created
            exchange.status, caller.has_begun = 200, True
            caller.connection.start_response(200, self._shared.render(exchange), None)
            await caller.send({"type": "http.response.body", "body": comment, "more_body": True})
