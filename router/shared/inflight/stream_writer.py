"""Writes an in-flight request's frames to a stream in Redis, for its followers in other processes.

Theory of operation. Each record is one XADD, numbered from 1 without gaps, so a reader detects a missing record at
once. A write that fails, or whose reply is lost, is sent again with the same number until Redis has it. Redis refuses a
number that it already has, and no other process writes to this stream, so that error means that the record is stored.
While an in-flight request runs without new frames, it writes an empty record after each HEARTBEAT_INTERVAL. So readers
can distinguish a leader that waits for its engine from a leader that is gone, even if its claim was purged.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
from redis.exceptions import ResponseError

from router.core.trace_context import traceparent_of
from router.net.redis.commands import Arg, Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies

MAX_UNSENT_BYTES: Final = 4 << 20
"""Bytes of one in-flight request that may be queued for its stream; with more, it is no longer shared."""

MAX_STREAM_BYTES: Final = 4 << 20
"""Bytes of records that a stream keeps for its followers."""

HEARTBEAT_INTERVAL: Final = 0.7
"""Seconds without a record after which an in-flight request writes an empty one."""

# Seconds. Frames are collected for this time and written as one record: a record per frame would cost Redis a command
# for every token.
_BATCH_DELAY: Final = 0.025
_STREAM_TTL_MS: Final = 30_000  # milliseconds after its last record until a stream expires
_RETRY_DELAY: Final = 0.05  # seconds until a record that Redis may not have is sent again
_RETRY_TIMEOUT: Final = 30.0  # seconds for which a record is retried; no reader waits for more than a few seconds
_DUPLICATE_NUMBER_ERROR: Final = "equal or smaller than the target stream top item"  # from Redis' reply to XADD


class Producer(msgspec.Struct, frozen=True):
    """What generates: the engine, and the fallback model if it is not the requested one.

    `traceparent`: the span of the request that started it, if that is traced.
    """

    engine: str | None = None
    fallback: str | None = None
    traceparent: str | None = None


class StreamRecord(msgspec.Struct, frozen=True):
    """One record of a stream: frames, and in the last record the encoded outcome, which is opaque here."""

    producer: Producer
    frames: bytes
    outcome: bytes | None


def decode_record(fields: Any) -> StreamRecord:
    pairs = dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))
    engine, fallback = (pairs.get(name, b"").decode("ascii", "replace") or None for name in (b"engine", b"fallback"))
    traceparent = traceparent_of([pairs[b"trace"]]) if b"trace" in pairs else None
    return StreamRecord(Producer(engine, fallback, traceparent), pairs.get(b"frames", b""), pairs.get(b"end"))


class RedisStreamWriter:
    """Collects the frames of one in-flight request and writes them to its stream some 25 ms later.

    - Records reach Redis in order, each exactly once, whichever replies are lost and however long Redis is down, up to
      a bound.
    - Beyond the bounds (MAX_UNSENT_BYTES, or half a minute without Redis) it has `failed` and writes nothing more.
    - `on_done` is called once, when it has failed, or when Redis has the last record.
    """

    def __init__(self, pipeline: RedisPipeline, stream: str, on_done: "Callable[[RedisStreamWriter], object]") -> None:
        self.failed = False
        self._pipeline = pipeline
        self._stream = stream
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._outcome: bytes | None = None
        self._producer = Producer()
        self._record_sizes: deque[int] = deque()  # in bytes, of the records that the stream keeps
        self._stream_bytes = 0
        self._record_number = 0
        self._pending_record: _RecordWrite | None = None  # sent and not confirmed, or waiting for its retry
        self._last_write_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False

    def publish(self, producer: Producer, frames: bytes, outcome: bytes | None = None) -> None:
        """Queues frames. With the `outcome`, it is the last call that has an effect."""
        if self.failed or self._outcome is not None:
            return
        queued = self._unsent_bytes  # without the newest frames, so that one event of any size can be shared
        self._producer = producer
        self._unsent.append(frames)
        self._unsent_bytes += len(frames)
        self._outcome = outcome
        if queued > MAX_UNSENT_BYTES:
            self._fail()
        elif self._sending or self._pending_record is not None:
            pass  # one record at a time: these frames go with the next one, once Redis has this one
        elif outcome is not None:
            self._send()  # at once: no frame follows that is worth waiting for
        elif self._timer is None:
            self._timer = self._loop.call_later(_BATCH_DELAY, self._send)

    @property
    def finished(self) -> bool:
        """Whether it has been given the outcome."""
        return self._outcome is not None

    def heartbeat(self) -> None:
        """Writes an empty record if none was written for HEARTBEAT_INTERVAL."""
        if self._pending_record is None and self._loop.time() - self._last_write_at >= HEARTBEAT_INTERVAL:
            self.publish(self._producer, b"")

    def stop(self) -> None:
        """Discards what is queued, and writes nothing more."""
        self.failed = True
        self._pending_record = None
        self._unsent.clear()
        self._cancel_timer()

    def _fail(self) -> None:
        self.stop()
        self._on_done(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._cancel_timer()
        record = self._pending_record
        if record is None:
            record = self._pending_record = self._next_record()
        try:
            self._pipeline.send(*record.commands, size=record.size, on_reply=self._on_written)
        except RedisDownError:
            self._schedule_retry(record)
        else:
            self._sending = True

    def _next_record(self) -> "_RecordWrite":
        frames, self._unsent_bytes = b"".join(self._unsent), 0
        self._unsent.clear()
        self._record_number += 1
        # MINID trims the oldest records in the same command. A follower that still needs them sees the gap.
        first = f"{self._first_retained_number(len(frames))}-0"
        record: tuple[Arg, ...] = ("XADD", self._stream, "MINID", first, f"{self._record_number}-0")
        record += ("engine", self._producer.engine or "", "frames", frames)
        if self._producer.fallback is not None:
            record += ("fallback", self._producer.fallback)
        if self._producer.traceparent is not None:
            record += ("trace", self._producer.traceparent)
        if self._outcome is not None:
            record += ("end", self._outcome)
        commands = (record, ("PEXPIRE", self._stream, _STREAM_TTL_MS))
        self._last_write_at = now = self._loop.time()
        # The pipeline gives a large batch more time. A response of many MiB with the plain timeout would take it down.
        size = len(frames) + len(self._outcome or b"")
        return _RecordWrite(commands, size, now + _RETRY_TIMEOUT, is_last=self._outcome is not None)

    def _schedule_retry(self, record: "_RecordWrite") -> None:
        if self._loop.time() < record.retry_until:
            self._timer = self._loop.call_later(_RETRY_DELAY, self._send)
        else:
            self._fail()

    def _first_retained_number(self, size: int) -> int:
        self._record_sizes.append(size)
        self._stream_bytes += size
        # The newest record is kept, however large it is.
        while len(self._record_sizes) > 1 and self._stream_bytes > MAX_STREAM_BYTES:
            self._stream_bytes -= self._record_sizes.popleft()
        return self._record_number - len(self._record_sizes) + 1

    def _on_written(self, replies: Replies | None) -> None:
        self._sending = False
        record = self._pending_record
        if record is None:  # `stop` was called meanwhile
            return
        reply = replies[0] if replies is not None else None
        if reply is None or (isinstance(reply, Exception) and not _is_duplicate_number(reply)):
            self._schedule_retry(record)
            return
        self._pending_record = None
        if record.is_last:
            self._on_done(self)
        elif self._unsent:
            self._send()


class _RecordWrite(msgspec.Struct, frozen=True):
    """A record's commands. `retry_until`: the loop time after which it is not sent again."""

    commands: tuple[Command, Command]
    size: int
    retry_until: float
    is_last: bool


def _is_duplicate_number(error: Exception) -> bool:
    return isinstance(error, ResponseError) and _DUPLICATE_NUMBER_ERROR in str(error)
