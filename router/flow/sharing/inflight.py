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

from router.core.cache.cache_key import CacheKey
from router.core.endpoints.recording.sse import is_comment
from router.core.quota.rate_limit import estimate_tokens
from router.flow.result import LOST, GenerationResult
from router.flow.sharing.new_generation import NewGeneration
from router.shared.cache.purges import PurgePosition

TrySend = Callable[[bytes], bool]
"""Sends frames to a client without waiting. Returns False where that is not possible now; nothing is sent then."""

MAX_LAG: Final = 4 << 20
"""Bytes by which a subscriber may lag once an in-flight request has grown beyond its limit."""


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
        "_first_dropped",
        "_frames",
        "_join_limit",
        "_last_dropped",
        "_on_no_subscribers",
        "_on_not_joinable",
        "attempt_count",
        "dispatched_at",
        "documents",
        "id",
        "is_at_engine",
        "is_leader",
        "joinable",
        "key",
        "on_publish",
        "origin",
        "prompt",
        "purge_position",
        "record",
        "request",
        "result",
        "started_at",
        "subscribers",
        "task",
        "trace",
        "wait_plan",
    )  # fmt: skip

    def __init__(
        self, id_: str, key: CacheKey | None, new: NewGeneration, *, purge_position: PurgePosition, join_limit: int,
        on_no_subscribers: "Callable[[InFlightRequest], None]", on_not_joinable: "Callable[[InFlightRequest], None]",
    ) -> None:  # fmt: skip
        """`key`: None if the response is not shared with other requests.

        `purge_position`: the last purge that this process knew at the start. `join_limit` in bytes.
        """
        self.id = id_
        self.key = key
        self.request = new.request
        self.record = new.record
        self.origin = new.record.origin
        self.prompt = new.prompt
        self.trace = new.trace
        self.documents = new.documents
        self.wait_plan = new.wait_plan
        self.purge_position = purge_position
        self.started_at = asyncio.get_running_loop().time()
        self.dispatched_at: float | None = None  # by time.perf_counter: the first attempt of this process
        self.attempt_count = 0  # of this process
        self.is_at_engine = False  # an engine has got it, here or in another process
        self.is_leader = True
        self.joinable = key is not None
        self.result: GenerationResult | None = None
        self.on_publish: Callable[[bytes], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._frames: list[bytes] = []
        self._dropped_frames = 0  # frames before the first one in `_frames`
        self._first_dropped = self._last_dropped = b""
        self._buffered_bytes = 0
        self._dropped_events = 0  # events in the dropped frames, for the estimate of tokens
        self._join_limit = join_limit
        self._on_no_subscribers = on_no_subscribers
        self._on_not_joinable = on_not_joinable
        self.subscribers: list[Subscriber] = []

    @property
    def has_data(self) -> bool:
        return self._dropped_frames + len(self._frames) > 0

    def buffered_data(self) -> bytes:
        """All frames so far. To be called only while it is joinable: later, the first ones may have been dropped."""
        return b"".join(self._frames)

    def first_and_last_frames(self) -> tuple[bytes, bytes]:
        """The events that were published first and last; empty if none were. They are known even after their drop."""
        frames = self._frames
        first = self._first_dropped or (frames[0] if frames else b"")
        return first, next((frame for frame in reversed(frames) if not is_comment(frame)), self._last_dropped)

    def stop_joining(self) -> None:
        if self.joinable:
            self.joinable = False
            self._on_not_joinable(self)

    def subscribe(self) -> "Subscriber":
        """Adds a subscriber that starts with the first frame."""
        subscriber = Subscriber(self)
        self.subscribers.append(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: "Subscriber") -> None:
        self._remove_subscriber(subscriber)
        if not self.subscribers and self.result is None:
            self._on_no_subscribers(self)

    # -- called by the producer ---------------------------------------------------------------------------------------

    def publish(self, frames: bytes) -> None:
        if not self._frames and not self._dropped_frames:
            self.record.first_token_at = now = time.perf_counter()
            self.prompt.on_first_token(now)
        # Before the subscribers: one that cannot take the frames now reads them from the buffer later.
        self._frames.append(frames)
        self._buffered_bytes += len(frames)
        if self.on_publish is not None:
            self.on_publish(frames)
        for subscriber in self.subscribers:
            subscriber.on_data(frames)
        if self._buffered_bytes > self._join_limit:
            self._trim_buffer()

    def pass_comments(self, comments: bytes) -> None:
        """For the clients of now; nothing is kept."""
        for subscriber in self.subscribers:
            if subscriber.on_comments is not None:
                subscriber.on_comments(comments)

    def finish(self, result: GenerationResult) -> None:
        self.result = result
        self.joinable = False
        self.record.prompt_tokens, self.record.completion_tokens = result.prompt_tokens, result.completion_tokens
        self.record.error_reason = result.error_reason
        # A lost generation that was dispatched has cost the engine a prompt, even without a first token.
        was_lost = self.dispatched_at is not None and result.error_reason == LOST
        if self.has_data or result.body is not None or was_lost:
            self._estimate_tokens(result)
        for subscriber in self.subscribers:
            subscriber.wake()

    def _estimate_tokens(self, result: GenerationResult) -> None:
        if self.request.endpoint.runs_model and not result.prompt_tokens + result.completion_tokens:
            events = self._dropped_events + sum(map(_count_events, self._frames))
            self.record.estimated_tokens = estimate_tokens(self.request.prompt_size, events, len(result.body or b""))

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
            if unneeded:
                self._first_dropped = self._first_dropped or unneeded[0]
                self._last_dropped = unneeded[-1]
            del self._frames[: needed - self._dropped_frames]
            self._dropped_frames = needed
            # The newest event does not count, so one of any size reaches the subscribers that have read all others.
            newest = len(self._frames[-1]) if self._frames else 0
            if self._buffered_bytes - newest <= max(self._join_limit, MAX_LAG):
                return
            # Only the slowest ones; the next round of the loop drops what they alone have kept.
            for subscriber in [subscriber for subscriber in self.subscribers if subscriber.next_frame == needed]:
                subscriber.overrun = True
                subscriber.wake()  # nothing else will: it gets neither frames nor the result any more
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
    """A position in the frames of an in-flight request.

    - `wait_until_started` waits for the first frame, or for the end.
    - `read` returns the frames piece by piece, each once and in order; with the last piece, `finished` is set. While it
      waits, new frames go to `try_send` directly, without an event loop iteration, until `try_send` returns False.
    - One that is `overrun` is finished, and has not got all frames. Any other ends with the in-flight request's result.
    - `on_comments` gets the engine's comments before the first token, which are no frames.
    - `close` must be called when nothing more is needed; see `on_no_subscribers`.
    """

    __slots__ = ("_inflight", "_try_send", "_wakeup", "finished", "next_frame", "on_comments", "overrun")

    def __init__(self, inflight: InFlightRequest) -> None:
        self.next_frame = 0
        self.overrun = False
        self.finished = False
        self.on_comments: Callable[[bytes], None] | None = None
        self._inflight = inflight
        self._wakeup: asyncio.Future[None] | None = None
        self._try_send: TrySend | None = None

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

    async def wait_until_started(self, *, needs_end: bool) -> None:
        """Returns once there is data or a result; with `needs_end`, only at the result. Returns if it is overrun."""
        inflight = self._inflight
        while inflight.result is None and not self.overrun and (needs_end or not inflight.has_data):
            await self._wait_for_data()

    async def read(self, try_send: TrySend | None = None) -> bytes:
        inflight = self._inflight
        while not self.finished:
            if self.overrun:
                self.finished = True
                return b""
            data = b""
            if self.next_frame < inflight.frame_count:
                data = inflight.data_from_frame(self.next_frame)
                self.next_frame = inflight.frame_count
            self.finished = inflight.result is not None
            if data or self.finished:
                return data
            self._try_send = try_send  # only now: everything published so far has been returned
            try:
                await self._wait_for_data()
            finally:
                self._try_send = None
        return b""

    def close(self) -> None:
        self.finished = True
        self._inflight.unsubscribe(self)


def _count_events(frames: bytes) -> int:
    return frames.count(b"data:")  # an estimate: a text that contains it counts as well
