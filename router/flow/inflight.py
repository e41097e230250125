"""One generation on its way, and all who wait for it.

Theory of operation. A flight takes what is generated as fast as it comes, whoever reads it, and keeps it until it is
over, so that a reader that comes later begins with its first frame. Each reader has a place of its own in it. A flight
that grows beyond `limit` takes no more readers, and keeps only what those that it has still need: no more than MAX_LAG
beside the newest event. A reader that is further behind is left behind. So a slow reader slows nobody, and memory is
bounded.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from router.core.cache.key import CacheKey
from router.core.endpoints.engine_errors import is_refusal
from router.core.endpoints.error_format import error_frame
from router.core.endpoints.replay import replay
from router.core.endpoints.request import InferenceRequest
from router.core.quota.rate_limit import estimate_tokens
from router.errors import UPSTREAM, ApiError
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.result import LOST, GenerationResult
from router.shared.purges import PurgePosition

TrySend = Callable[[bytes], bool]
"""Takes frames for a client, if it can at this moment."""

MAX_LAG: Final = 4 << 20
"""Bytes by which a reader may be behind, once a flight has grown beyond its limit."""


LEADER_LOCAL_ERRORS: Final = ("queue_timeout", "queue_full", "tenant_queue_full", "out_of_resources")
"""The codes of errors about the process that led a flight: another one may have room."""


class RetryRequest(Exception):  # noqa: N818 - it is no error
    """The flight came to nothing for this reader, who has had nothing of it yet: he may begin anew."""


class InFlightRequest:
    """What is generated, for those who `attach`.

    - A reader has every byte from the first on, in order, and the end; those who fail are told so.
    - `on_empty` is called when the last reader has left a flight that is not over, `on_close` when it takes no more.
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
        """`key`: None where nobody else may have it; `since`: how far the purges were known when it began."""
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
        self._dropped_frames = 0  # how many frames have been let go of
        self._buffered_bytes = 0
        self._dropped_events = 0  # in what has been let go of
        self._join_limit = join_limit
        self._on_no_subscribers = on_no_subscribers
        self._on_not_joinable = on_not_joinable
        self.subscribers: list[Subscriber] = []

    @property
    def has_data(self) -> bool:
        """Whether it has said anything."""
        return self._dropped_frames + len(self._frames) > 0

    @property
    def has_all_frames(self) -> bool:
        """Whether it holds all that it has said."""
        return self._dropped_frames == 0

    def buffered_data(self) -> bytes:
        """All that it has said, as long as it is complete."""
        return b"".join(self._frames)

    def stop_joining(self) -> None:
        """It takes no more readers."""
        if self.joinable:
            self.joinable = False
            self._on_not_joinable(self)

    def subscribe(self, request: InferenceRequest, exchange: Exchange, *, is_initiator: bool = False) -> "Subscriber":
        """A reader from the first frame on. `leads`: the flight is there for him, so that its failure is his."""
        reader = Subscriber(self, request, exchange, is_initiator=is_initiator)
        self.subscribers.append(reader)
        return reader

    def unsubscribe(self, subscriber: "Subscriber") -> None:
        self._remove_subscriber(subscriber)
        if not self.subscribers and self.result is None:
            self._on_no_subscribers(self)

    # -- the one who flies ------------------------------------------------------------------------------------------

    def publish(self, frames: bytes) -> None:
        """Takes what has come."""
        if not self._frames and not self._dropped_frames:
            self.record.first_token_at = time.perf_counter()
        self._frames.append(frames)
        self._buffered_bytes += len(frames)
        if self.on_publish is not None:
            self.on_publish(frames)
        for reader in self.subscribers:
            reader.on_data(frames)
        if self._buffered_bytes > self._join_limit:
            self._trim_buffer()

    def finish(self, result: GenerationResult) -> None:
        """It is over."""
        self.result = result
        self.joinable = False
        self.record.prompt_tokens, self.record.completion_tokens = result.prompt_tokens, result.completion_tokens
        self.record.error_reason = result.error_reason
        if self.record.first_token_at is not None or (
            self.record.dispatched_at is not None and result.error_reason == LOST
        ):
            self._estimate_tokens(result)
        for reader in self.subscribers:
            reader.wake()

    def _estimate_tokens(self, result: GenerationResult) -> None:
        """What it has used, where nobody has told."""
        if not result.prompt_tokens + result.completion_tokens:
            events = self._dropped_events + sum(map(_count_events, self._frames))
            self.record.estimated_tokens = estimate_tokens(len(self.request.body), events, len(result.body or b""))

    def _trim_buffer(self) -> None:
        """Lets go of what all have read, and of readers who are too far behind."""
        self.stop_joining()
        while True:
            needed = min(
                (reader.next_frame for reader in self.subscribers), default=self._dropped_frames + len(self._frames)
            )
            unneeded = self._frames[: needed - self._dropped_frames]
            self._buffered_bytes -= sum(map(len, unneeded))
            self._dropped_events += sum(map(_count_events, unneeded))
            del self._frames[: needed - self._dropped_frames]
            self._dropped_frames = needed
            # The newest event is not counted, so that one of any size reaches those who have had all before it.
            newest = len(self._frames[-1]) if self._frames else 0
            if self._buffered_bytes - newest <= max(self._join_limit, MAX_LAG):
                return
            for reader in [reader for reader in self.subscribers if reader.next_frame == needed]:
                reader.overrun = True
                self._remove_subscriber(reader)

    def _remove_subscriber(self, subscriber: "Subscriber") -> None:
        if subscriber in self.subscribers:  # who was left behind has left already
            self.subscribers.remove(subscriber)

    def data_from_frame(self, number: int) -> bytes:
        """What it has said from its frame number `at` on, which it still holds."""
        frames = self._frames[number - self._dropped_frames :] if number > self._dropped_frames else self._frames
        return frames[0] if len(frames) == 1 else b"".join(frames)

    @property
    def frame_count(self) -> int:
        """How many frames it has said."""
        return self._dropped_frames + len(self._frames)


class Subscriber:
    """One client's place in a flight, and the form in which he wants it.

    - `begin` waits for the first token, or for all of a JSON answer; it gives the answer if that is whole. Raises the
      ApiError that the flight ended with, or Again.
    - `next` then gives what the client gets of a stream; with the last of it, it is `over`. A flight that fails after
      its first token ends with one error event and no `[DONE]`. While it waits, what comes goes to `take` at once,
      without a turn of the loop, until that says that it can have no more.
    - `close` must be called once nothing is wanted any more; with the last reader, the engine is freed.
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
        """The flight has said this, its newest."""
        take = self._try_send
        if take is not None and take(frames):
            self.next_frame += 1
        else:
            self._try_send = None  # what comes now comes after what he has to fetch
            self.wake()

    def wake(self) -> None:
        """There is something new."""
        waiting = self._wakeup
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _wait_for_data(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None

    async def start(self) -> bytes | None:
        flight = self._inflight
        # Which form it has is known once something has come of it: another process may lead it for a JSON client.
        while flight.result is None and not (self._request.stream and flight.has_data):
            await self._wait_for_data()
        work, exchange = flight.record, self._exchange
        exchange.engine, exchange.fallback_model, exchange.task = work.engine, work.fallback_model, work.task
        exchange.first_token_at = time.perf_counter()
        if flight.result is None:
            return None
        if not flight.result.complete:
            failure = self._error_or_retry(flight.result)
            if self._request.stream and flight.has_data and failure is flight.result.error:
                return None  # what there is of it comes first
            exchange.fallback_model = exchange.first_token_at = None  # there was none
            raise failure
        self._record_usage(flight.result)
        if self._request.stream and flight.result.body is None:
            return None
        answer = self._render_body(flight.result)
        if answer is None:
            raise RetryRequest
        return answer

    def _error_or_retry(self, result: GenerationResult) -> Exception:
        error = result.error
        if error is None:
            return RetryRequest()
        if self._is_initiator and self._inflight.is_leader:
            return error
        if not self._inflight.is_leader and error.code in LEADER_LOCAL_ERRORS:
            return RetryRequest()
        # A generation that broke off may do better; and a refusal can be about a field that is not in the key, such as
        # `priority`, which this request does not have, or has otherwise.
        return RetryRequest() if result.had_data or is_refusal(error.status) else error

    def _render_body(self, result: GenerationResult) -> bytes | None:
        if not self._request.stream and result.body is not None:
            return result.body
        return replay(result.recorded_response, self._request) if result.recorded_response is not None else None

    async def read(self, try_send: TrySend | None = None) -> bytes:
        flight = self._inflight
        while not self.finished:
            if self.overrun:
                self.finished = True
                return self._error_event("slow-reader", "The answer broke off: it was not read fast enough.")
            data = b""
            if self.next_frame < flight.frame_count:
                data = flight.data_from_frame(self.next_frame)
                self.next_frame = flight.frame_count
            if flight.result is not None:
                self.finished = True
                return data + self._last_data(flight.result)
            if data:
                return data
            self._try_send = try_send  # he has had all that was said
            try:
                await self._wait_for_data()
            finally:
                self._try_send = None
        return b""

    def _last_data(self, result: GenerationResult) -> bytes:
        if result.complete:
            self._record_usage(result)
            return result.endings[self._request.include_usage]
        return self._error_event(result.error_reason or "lost", result.error.message if result.error else "")

    def _error_event(self, reason: str, message: str) -> bytes:
        self._exchange.outcome = "failed"
        self._exchange.error_reason = reason
        return error_frame(self._request.endpoint, ApiError(502, message, kind=UPSTREAM, code="engine_failed"))

    def _record_usage(self, result: GenerationResult) -> None:
        exchange = self._exchange
        exchange.prompt_tokens, exchange.completion_tokens = result.prompt_tokens, result.completion_tokens

    def close(self) -> None:
        self.finished = True
        self._inflight.unsubscribe(self)


def _count_events(frames: bytes) -> int:
    return frames.count(b"data:")
