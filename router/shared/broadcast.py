"""What a flight says, on its way to a stream in Redis, for those at other processes who follow it.

One XADD a record, numbered from 1 on without a gap, so that whoever reads on sees at once when he has missed one.
"""

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from router.shared.line import Line, RedisDownError, Replies
from router.shared.link import Word

MAX_UNSENT: Final = 4 << 20
"""Bytes that may wait to be written to one flight's stream; a flight that has more is no longer shared."""

_GATHER: Final = 0.025  # seconds for which frames are gathered before they are written
_KEPT: Final = 4 << 20  # bytes of a stream that stay for those who follow
_STREAM_LIFE: Final = 30_000  # milliseconds for which a stream stays after its last record


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
    """One flight on its way to its stream: what is said is gathered, and written some tens of milliseconds later."""

    def __init__(self, line: Line, stream: str) -> None:
        self._line = line
        self._stream = stream
        self._unsent: list[bytes] = []
        self._size = 0
        self._end: bytes | None = None
        self._source = Source()
        self._records: deque[int] = deque()  # the sizes of those that the stream keeps
        self._kept = 0
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sending = False
        self._failed = False

    def say(self, source: Source, frames: bytes, end: bytes | None = None) -> None:
        """Takes what the flight says; with its end, nothing follows."""
        if self._failed or self._end is not None:
            return
        self._source = source
        self._unsent.append(frames)
        self._size += len(frames)
        self._end = end
        if self._size > MAX_UNSENT:
            self._give_up()
        elif end is not None:
            self._send()
        elif self._timer is None and not self._sending:
            self._timer = asyncio.get_running_loop().call_later(_GATHER, self._send)

    def _give_up(self) -> None:
        self._failed = True
        self._unsent.clear()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending or self._failed:
            return
        frames, self._size = b"".join(self._unsent), 0
        self._unsent.clear()
        self._number += 1
        first = f"{self._first_kept(len(frames))}-0"
        record: tuple[Word, ...] = ("XADD", self._stream, "MINID", first, f"{self._number}-0")
        record += ("engine", self._source.engine or "", "frames", frames)
        if self._source.fallback is not None:
            record += ("fallback", self._source.fallback)
        ended = self._end is not None
        if self._end is not None:
            record += ("end", self._end)
        try:
            self._line.tell(
                record, ("PEXPIRE", self._stream, _STREAM_LIFE), size=len(frames),
                told=lambda replies: self._sent(replies, ended=ended),
            )  # fmt: skip
        except RedisDownError:
            self._give_up()
            return
        self._sending = True

    def _first_kept(self, size: int) -> int:
        self._records.append(size)
        self._kept += size
        while len(self._records) > 1 and self._kept > _KEPT:
            self._kept -= self._records.popleft()
        return self._number - len(self._records) + 1

    def _sent(self, replies: Replies | None, *, ended: bool) -> None:
        self._sending = False
        if replies is None or isinstance(replies[0], Exception):
            self._give_up()
        elif self._unsent or (self._end is not None and not ended):
            self._send()
