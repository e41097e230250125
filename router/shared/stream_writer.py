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

from router.net.redis.commands import Command, Word
from router.net.redis.pipeline import Line, RedisDownError, Replies

MAX_UNSENT: Final = 4 << 20
"""Bytes that may wait to be written to one flight's stream; a flight that has more is no longer shared."""

BEAT: Final = 0.7
"""Seconds after which a flight that has had nothing to say writes an empty record."""

_GATHER: Final = 0.025  # seconds for which frames are gathered before they are written
_KEPT: Final = 4 << 20  # bytes of a stream that stay for those who follow
_STREAM_LIFE: Final = 30_000  # milliseconds for which a stream stays after its last record
_WRITE_AGAIN: Final = 0.05  # seconds after which a record that Redis may not have is written again
_GIVE_UP: Final = 30.0  # seconds for which a record is written again; no reader waits for longer than a few seconds
_HAS_IT: Final = "equal or smaller than the target stream top item"  # how Redis refuses a number that it has


class Source(msgspec.Struct, frozen=True):
    """Who generates: the engine, and its model where that is not the one that was asked for."""

    engine: str | None = None
    fallback: str | None = None


class Record(msgspec.Struct, frozen=True):
    """What a flight's stream holds: `frames`, and at its end `end`, whatever that is to those who write and read it."""

    source: Source
    frames: bytes
    end: bytes | None


def read_record(fields: Any) -> Record:
    """A record, of its fields in the stream."""
    pairs = dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))
    engine, fallback = (pairs.get(name, b"").decode("ascii", "replace") or None for name in (b"engine", b"fallback"))
    return Record(Source(engine, fallback), pairs.get(b"frames", b""), pairs.get(b"end"))


class Broadcast:
    """One flight on its way to its stream: what is said is gathered, and written some tens of milliseconds later.

    - Records reach Redis in order, each once, whichever replies are lost and however long Redis is away, up to a bound.
    - Beyond the bounds (MAX_UNSENT, or half a minute without Redis) it has `failed`, and writes nothing more.
    - `on_over` is called, once, when it has failed, or when Redis has its last record.
    """

    def __init__(self, line: Line, stream: str, on_over: "Callable[[Broadcast], object]") -> None:
        self.failed = False
        self._line = line
        self._stream = stream
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._size = 0
        self._end: bytes | None = None
        self._source = Source()
        self._records: deque[int] = deque()  # the sizes of those that the stream keeps
        self._kept = 0
        self._number = 0
        self._record: _Write | None = None  # on its way, or to be written again
        self._written_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False

    def say(self, source: Source, frames: bytes, end: bytes | None = None) -> None:
        """Takes what the flight says; with its end, nothing follows."""
        if self.failed or self._end is not None:
            return
        waiting = self._size  # without the newest frames, so that one event of any size can be shared
        self._source = source
        self._unsent.append(frames)
        self._size += len(frames)
        self._end = end
        if waiting > MAX_UNSENT:
            self._give_up()
        elif self._sending or self._record is not None:
            pass  # it goes with the next record
        elif end is not None:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self._send)

    @property
    def ended(self) -> bool:
        """Whether it has been given its end."""
        return self._end is not None

    def beat(self) -> None:
        """Shows that the flight lives, where nothing else has shown it of late."""
        if self._record is None and self._loop.time() - self._written_at >= BEAT:
            self.say(self._source, b"")

    def stop(self) -> None:
        """Writes nothing more, whatever waits to be written."""
        self.failed = True
        self._record = None
        self._unsent.clear()
        self._cancel_timer()

    def _give_up(self) -> None:
        self.stop()
        self._on_over(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._cancel_timer()
        record = self._record
        if record is None:
            record = self._record = self._next()
        try:
            self._line.tell(*record.commands, size=record.size, told=self._written)
        except RedisDownError:
            self._send_again(record)
        else:
            self._sending = True

    def _next(self) -> "_Write":
        """The record of all that waits to be written."""
        frames, self._size = b"".join(self._unsent), 0
        self._unsent.clear()
        self._number += 1
        first = f"{self._first_kept(len(frames))}-0"
        record: tuple[Word, ...] = ("XADD", self._stream, "MINID", first, f"{self._number}-0")
        record += ("engine", self._source.engine or "", "frames", frames)
        if self._source.fallback is not None:
            record += ("fallback", self._source.fallback)
        if self._end is not None:
            record += ("end", self._end)
        commands = (record, ("PEXPIRE", self._stream, _STREAM_LIFE))
        self._written_at = now = self._loop.time()
        size = len(frames) + len(self._end or b"")
        return _Write(commands, size, now + _GIVE_UP, is_last=self._end is not None)

    def _send_again(self, record: "_Write") -> None:
        if self._loop.time() < record.until:
            self._timer = self._loop.call_later(_WRITE_AGAIN, self._send)
        else:
            self._give_up()

    def _first_kept(self, size: int) -> int:
        self._records.append(size)
        self._kept += size
        while len(self._records) > 1 and self._kept > _KEPT:
            self._kept -= self._records.popleft()
        return self._number - len(self._records) + 1

    def _written(self, replies: Replies | None) -> None:
        self._sending = False
        record = self._record
        if record is None:  # given up meanwhile
            return
        reply = replies[0] if replies is not None else None
        if reply is None or (isinstance(reply, Exception) and not _is_there(reply)):
            self._send_again(record)
            return
        self._record = None
        if record.is_last:
            self._on_over(self)
        elif self._unsent:
            self._send()


class _Write(msgspec.Struct, frozen=True):
    """A record as it is written, `until` when it is written again where Redis may not have it."""

    commands: tuple[Command, Command]
    size: int
    until: float
    is_last: bool


def _is_there(refusal: Exception) -> bool:
    return isinstance(refusal, ResponseError) and _HAS_IT in str(refusal)
