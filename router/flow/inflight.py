"""One generation in progress (an in-flight request) and the subscribers to it.

Theory of operation. An in-flight request receives frames as fast as they are generated and buffers them until it ends,
so a subscriber that joins late starts with the first frame. Each subscriber has its own position (`next_frame`) in the
buffer. An in-flight request that grows beyond `join_limit` accepts no more subscribers. It then buffers only what the
present subscribers still need: at most MAX_LAG bytes (or `join_limit`, if that is more) besides the newest event. A
subscriber that lags further is overrun: it is removed and gets an error. So a slow subscriber delays no other one, and
memory is bounded.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from router.core.cache.key import CacheKey
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.engine_errors import is_refusal
from router.core.endpoints.replay import replay
from router.core.quota.rate_limit import estimate_tokens
from router.errors import UPSTREAM, ApiError
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.result import LOST, GenerationResult
from router.shared.purges import PurgePosition

TrySend = Callable[[bytes], bool]
"""Sends frames to a client without waiting. Returns False where that is not possible now; nothing is sent then."""

MAX_LAG: Final = 4 << 20
"""Bytes by which a subscriber may lag once an in-flight request has grown beyond its limit."""


LEADER_LOCAL_ERRORS: Final = ("queue_timeout", "queue_full", "tenant_queue_full", "out_of_resources")
"""Error codes that concern only the leader's process. A follower retries: its own process may have capacity."""


class RetryRequest(Exception):  # noqa: N818 - a signal to the gateway, not an error
    """The in-flight request has no response for this subscriber. It has received nothing yet, so it may start over."""


class InFlightRequest:
    """The frames of one generation, for its subscribers.

    - A subscriber gets every byte from the first on, in order, and then the end; one that is overrun gets an error.
    - `on_no_subscribers` is called when the last subscriber leaves before the end; `on_not_joinable` is called when
      the in-flight request accepts no more subscribers.
    """

    __slots__ = (
        "_buffered_bytes",
        "_dropped_events",
        "_dropped_frames",
        "_frames",
        "_join_limit",
        "_on_no_subscribers",
        "_on_not_joinable",
        "documents",
        "id",
        "is_leader",
        "joinable",
        "key",
        "on_publish",
        "purge_position",
        "record",
        "request",
        "result",
        "started_at",
        "subscribers",
        "task",
    )  # fmt: skip

    def __init__(
        self, id_: str, request: InferenceRequest, key: CacheKey | None, record: GenerationRecord, *,
        documents: tuple[str, ...], purge_position: PurgePosition, join_limit: int,
        on_no_subscribers: "Callable[[InFlightRequest], None]", on_not_joinable: "Callable[[InFlightRequest], None]",
    ) -> None:  # fmt: skip
        """`key`: None if the response is not shared with other requests.

        `purge_position`: the last purge that this process knew at the start. `join_limit` in bytes.
        """
        self.id = id_
        self.request = request
        self.key = key
        self.record = record
        self.documents = documents
        self.purge_position = purge_position
        self.started_at = asyncio.get_running_loop().time()
        self.is_leader = True
        self.joinable = key is not None
        self.result: GenerationResult | None = None
        self.on_publish: Callable[[bytes], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._frames: list[bytes] = []
        self._dropped_frames = 0  # frames before the first one in `_frames`
        self._buffered_bytes = 0
        self._dropped_events = 0  # events in the dropped frames, for the estimate of tokens
        self._join_limit = join_limit
        self._on_no_subscribers = on_no_subscribers
        self._on_not_joinable = on_not_joinable
        self.subscribers: list[Subscriber] = []

    @property
    def has_data(self) -> bool:
        return self._dropped_frames + len(self._frames) > 0

    @property
    def has_all_frames(self) -> bool:
        return self._dropped_frames == 0

    def buffered_data(self) -> bytes:
        """All frames so far; only meaningful while `has_all_frames`."""
        return b"".join(self._frames)

    def stop_joining(self) -> None:
        if self.joinable:
            self.joinable = False
            self._on_not_joinable(self)

    def subscribe(self, request: InferenceRequest, exchange: Exchange, *, is_initiator: bool = False) -> "Subscriber":
        """Adds a subscriber that starts with the first frame.

        `is_initiator`: the in-flight request was started for this subscriber, so it gets the leader's error as it is.
        """
        subscriber = Subscriber(self, request, exchange, is_initiator=is_initiator)
        self.subscribers.append(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: "Subscriber") -> None:
        self._remove_subscriber(subscriber)
        if not self.subscribers and self.result is None:
            self._on_no_subscribers(self)

    # -- called by the producer ---------------------------------------------------------------------------------------

    def publish(self, frames: bytes) -> None:
        if not self._frames and not self._dropped_frames:
            self.record.first_token_at = time.perf_counter()
        # Before the subscribers: one that cannot take the frames now reads them from the buffer later.
        self._frames.append(frames)
        self._buffered_bytes += len(frames)
        if self.on_publish is not None:
            self.on_publish(frames)
        for subscriber in self.subscribers:
            subscriber.on_data(frames)
        if self._buffered_bytes > self._join_limit:
            self._trim_buffer()

    def finish(self, result: GenerationResult) -> None:
        self.result = result
        self.joinable = False
        self.record.prompt_tokens, self.record.completion_tokens = result.prompt_tokens, result.completion_tokens
        self.record.error_reason = result.error_reason
        # A lost generation that was dispatched has cost the engine a prompt, even without a first token.
        if self.record.first_token_at is not None or (
            self.record.dispatched_at is not None and result.error_reason == LOST
        ):
            self._estimate_tokens(result)
        for subscriber in self.subscribers:
            subscriber.wake()

    def _estimate_tokens(self, result: GenerationResult) -> None:
        if not result.prompt_tokens + result.completion_tokens:
            events = self._dropped_events + sum(map(_count_events, self._frames))
            self.record.estimated_tokens = estimate_tokens(len(self.request.body), events, len(result.body or b""))

    def _trim_buffer(self) -> None:
        """Drops the frames that all subscribers have read, then overruns the slowest ones while too much is left."""
        self.stop_joining()  # a new subscriber would need the first frame, which is about to be dropped
        while True:
            needed = min(
                (subscriber.next_frame for subscriber in self.subscribers),
                default=self._dropped_frames + len(self._frames),
            )
            unneeded = self._frames[: needed - self._dropped_frames]
            self._buffered_bytes -= sum(map(len, unneeded))
            self._dropped_events += sum(map(_count_events, unneeded))
            del self._frames[: needed - self._dropped_frames]
            self._dropped_frames = needed
            # The newest event does not count, so one of any size reaches the subscribers that have read all others.
            newest = len(self._frames[-1]) if self._frames else 0
            if self._buffered_bytes - newest <= max(self._join_limit, MAX_LAG):
                return
            # Only the slowest ones; the next round of the loop drops what they alone have kept.
            for subscriber in [subscriber for subscriber in self.subscribers if subscriber.next_frame == needed]:
                subscriber.overrun = True
                self._remove_subscriber(subscriber)  # its `close` calls `unsubscribe`, and that `on_no_subscribers`

    def _remove_subscriber(self, subscriber: "Subscriber") -> None:
        if subscriber in self.subscribers:  # one that was overrun is not in it any more
            self.subscribers.remove(subscriber)

    def data_from_frame(self, number: int) -> bytes:
        """The data from frame `number` on, which must still be buffered."""
        # Without a copy of the list if the subscriber needs all of it.
        frames = self._frames[number - self._dropped_frames :] if number > self._dropped_frames else self._frames
        return frames[0] if len(frames) == 1 else b"".join(frames)

    @property
    def frame_count(self) -> int:
        """Frames published so far, including the dropped ones."""
        return self._dropped_frames + len(self._frames)


class Subscriber:
    """One client's request, attached to an in-flight request, and the form (stream or JSON) that it asks for.

    - `start` waits for the first token, or for the end where the client wants JSON. It returns the full response if
      there is one. Raises the ApiError with which the generation ended, or RetryRequest.
    - `read` then returns the stream piece by piece; with the last piece, `finished` is set. A generation that fails
      after its first token ends with one error event and no `[DONE]`. While `read` waits, new frames go to `try_send`
      directly, without an event loop iteration, until `try_send` returns False.
    - `close` must be called when the client needs nothing more; when the last subscriber leaves, the engine is freed.
    """

    __slots__ = (
        "_exchange",
        "_inflight",
        "_is_initiator",
        "_request",
        "_try_send",
        "_wakeup",
        "finished",
        "next_frame",
        "overrun",
    )  # fmt: skip

    def __init__(
        self, inflight: InFlightRequest, request: InferenceRequest, exchange: Exchange, *, is_initiator: bool
    ) -> None:
        self.next_frame = 0
        self.overrun = False
        self._inflight = inflight
        self._request = request
        self._exchange = exchange
        self._is_initiator = is_initiator
        self._wakeup: asyncio.Future[None] | None = None
        self._try_send: TrySend | None = None
        self.finished = False

    def on_data(self, frames: bytes) -> None:
        try_send = self._try_send
        if try_send is not None and try_send(frames):
            self.next_frame += 1
        else:
            # Order: these frames are left for `read`, so later ones must not overtake them through `try_send`.
            self._try_send = None
            self.wake()

    def wake(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)

    async def _wait_for_data(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None

    async def start(self) -> bytes | None:
        inflight = self._inflight
        # The form of the response is known once there is data or a result: another process may lead it for a JSON
        # client, and then there are no frames, only a result.
        while inflight.result is None and not (self._request.stream and inflight.has_data):
            await self._wait_for_data()
        record, exchange = inflight.record, self._exchange
        exchange.engine, exchange.fallback_model, exchange.task = record.engine, record.fallback_model, record.task
        exchange.first_token_at = time.perf_counter()
        if inflight.result is None:
            return None
        if not inflight.result.complete:
            failure = self._error_or_retry(inflight.result)
            if self._request.stream and inflight.has_data and failure is inflight.result.error:
                return None  # `read` gives the frames so far, then the error event
            exchange.fallback_model = exchange.first_token_at = None  # this request has received no token
            raise failure
        self._record_usage(inflight.result)
        if self._request.stream and inflight.result.body is None:
            return None
        body = self._render_body(inflight.result)
        if body is None:
            raise RetryRequest
        return body

    def _error_or_retry(self, result: GenerationResult) -> Exception:
        error = result.error
        if error is None:  # the entry has been stored meanwhile; a retry finds it
            return RetryRequest()
        if self._is_initiator and self._inflight.is_leader:
            return error
        if not self._inflight.is_leader and error.code in LEADER_LOCAL_ERRORS:
            return RetryRequest()
        # A generation that broke off may succeed at another attempt. A refusal may concern a field that is not part of
        # the key, such as `priority`, which this request may lack or have with another value.
        return RetryRequest() if result.had_data or is_refusal(error.status) else error

    def _render_body(self, result: GenerationResult) -> bytes | None:
        if not self._request.stream and result.body is not None:
            return result.body  # as the engine sent it
        return replay(result.recorded_response, self._request) if result.recorded_response is not None else None

    async def read(self, try_send: TrySend | None = None) -> bytes:
        inflight = self._inflight
        while not self.finished:
            if self.overrun:
                self.finished = True
                return self._error_event("slow-reader", "The response was interrupted: the client reads too slowly.")
            data = b""
            if self.next_frame < inflight.frame_count:
                data = inflight.data_from_frame(self.next_frame)
                self.next_frame = inflight.frame_count
            if inflight.result is not None:
                self.finished = True
                return data + self._last_data(inflight.result)
            if data:
                return data
            self._try_send = try_send  # only now: everything published so far has been returned
            try:
                await self._wait_for_data()
            finally:
                self._try_send = None
        return b""

    def _last_data(self, result: GenerationResult) -> bytes:
        if result.complete:
            self._record_usage(result)
            return result.endings[self._request.include_usage]  # without and with the usage event
        return self._error_event(result.error_reason or "lost", result.error.message if result.error else "")

    def _error_event(self, reason: str, message: str) -> bytes:
        self._exchange.outcome = "failed"
        self._exchange.error_reason = reason
        streaming = self._request.endpoint.streaming
        assert streaming is not None  # only streams are read piece by piece
        return streaming.error_frame(ApiError(502, message, kind=UPSTREAM, code="engine_failed"))

    def _record_usage(self, result: GenerationResult) -> None:
        exchange = self._exchange
        exchange.prompt_tokens, exchange.completion_tokens = result.prompt_tokens, result.completion_tokens

    def close(self) -> None:
        self.finished = True
        self._inflight.unsubscribe(self)


def _count_events(frames: bytes) -> int:
    return frames.count(b"data:")  # an estimate: a text that contains it counts as well
