"""What a flight says, on its way to a stream in Redis, for those at other processes who follow it.

Theory of operation. One XADD a record, numbered from 1 on without a gap, so a reader sees at once that it has missed
one. A write that fails, or whose reply is lost, is sent again with the same number until Redis has it: Redis refuses a
number that it has already, and nobody else writes to this stream, so that refusal means that the record is there. As
long as the flight lives it writes a record every BEAT at least, an empty one where there is nothing to say. So readers
know a leader that waits for its engine from a leader that is gone, whatever has become of its claim.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
from redis.exceptions import ResponseError

from router.net.redis.commands import Arg, Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies

MAX_UNSENT_BYTES: Final = 4 << 20
"""Bytes that may wait to be written to one flight's stream; a flight that has more is no longer shared."""

HEARTBEAT_INTERVAL: Final = 0.7
"""Seconds after which a flight that has had nothing to say writes an empty record."""

_BATCH_DELAY: Final = 0.025  # seconds for which frames are gathered before they are written
_MAX_STREAM_BYTES: Final = 4 << 20  # bytes of a stream that stay for those who follow
_STREAM_TTL_MS: Final = 30_000  # milliseconds for which a stream stays after its last record
_RETRY_DELAY: Final = 0.05  # seconds after which a record that Redis may not have is written again
_RETRY_TIMEOUT: Final = (
    30.0  # seconds for which a record is written again; no reader waits for longer than a few seconds
)
_DUPLICATE_NUMBER_ERROR: Final = (
    "equal or smaller than the target stream top item"  # how Redis refuses a number that it has
)


class Producer(msgspec.Struct, frozen=True):
    """Who generates: the engine, and its model where that is not the one that was asked for."""

    engine: str | None = None
    fallback: str | None = None


class StreamRecord(msgspec.Struct, frozen=True):
    """What a flight's stream holds: `frames`, and at its end `end`, whatever that is to those who write and read it."""

    producer: Producer
    frames: bytes
    outcome: bytes | None


def decode_record(fields: Any) -> StreamRecord:
    """A record, of its fields in the stream."""
    pairs = dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))
    engine, fallback = (pairs.get(name, b"").decode("ascii", "replace") or None for name in (b"engine", b"fallback"))
    return StreamRecord(Producer(engine, fallback), pairs.get(b"frames", b""), pairs.get(b"end"))


class RedisStreamWriter:
    """One flight on its way to its stream: what is said is gathered, and written some tens of milliseconds later.

    - Records reach Redis in order, each once, whichever replies are lost and however long Redis is away, up to a bound.
    - Beyond the bounds (MAX_UNSENT, or half a minute without Redis) it has `failed`, and writes nothing more.
    - `on_over` is called, once, when it has failed, or when Redis has its last record.
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
        self._record_sizes: deque[int] = deque()  # the sizes of those that the stream keeps
        self._stream_bytes = 0
        self._record_number = 0
        self._pending_record: _RecordWrite | None = None  # on its way, or to be written again
        self._last_write_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False

    def publish(self, producer: Producer, frames: bytes, outcome: bytes | None = None) -> None:
        """Takes what the flight says; with its end, nothing follows."""
        if self.failed or self._outcome is not None:
            return
        waiting = self._unsent_bytes  # without the newest frames, so that one event of any size can be shared
        self._producer = producer
        self._unsent.append(frames)
        self._unsent_bytes += len(frames)
        self._outcome = outcome
        if waiting > MAX_UNSENT_BYTES:
            self._fail()
        elif self._sending or self._pending_record is not None:
            pass  # it goes with the next record
        elif outcome is not None:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(_BATCH_DELAY, self._send)

    @property
    def finished(self) -> bool:
        """Whether it has been given its end."""
        return self._outcome is not None

    def heartbeat(self) -> None:
        """Shows that the flight lives, where nothing else has shown it of late."""
        if self._pending_record is None and self._loop.time() - self._last_write_at >= HEARTBEAT_INTERVAL:
            self.publish(self._producer, b"")

    def stop(self) -> None:
        """Writes nothing more, whatever waits to be written."""
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
        """The record of all that waits to be written."""
        frames, self._unsent_bytes = b"".join(self._unsent), 0
        self._unsent.clear()
        self._record_number += 1
        first = f"{self._first_retained_number(len(frames))}-0"
        record: tuple[Arg, ...] = ("XADD", self._stream, "MINID", first, f"{self._record_number}-0")
        record += ("engine", self._producer.engine or "", "frames", frames)
        if self._producer.fallback is not None:
            record += ("fallback", self._producer.fallback)
        if self._outcome is not None:
            record += ("end", self._outcome)
        commands = (record, ("PEXPIRE", self._stream, _STREAM_TTL_MS))
        self._last_write_at = now = self._loop.time()
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
        while len(self._record_sizes) > 1 and self._stream_bytes > _MAX_STREAM_BYTES:
            self._stream_bytes -= self._record_sizes.popleft()
        return self._record_number - len(self._record_sizes) + 1

    def _on_written(self, replies: Replies | None) -> None:
        self._sending = False
        record = self._pending_record
        if record is None:  # given up meanwhile
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
    """A record as it is written, `until` when it is written again where Redis may not have it."""

    commands: tuple[Command, Command]
    size: int
    retry_until: float
    is_last: bool


def _is_duplicate_number(error: Exception) -> bool:
    return isinstance(error, ResponseError) and _DUPLICATE_NUMBER_ERROR in str(error)
