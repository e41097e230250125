"""Streams whose events say what they are: `event:` lines, a `type` in each payload, and a last event of their own.

/v1/responses and /v1/messages stream like that. Their last event (`response.completed`, `message_stop`) is to their
clients what `[DONE]` is to others, and is held back like that: it goes out only when the answer is in the hands of the
store, so that who has seen the end finds the answer there. It is the answer's own all the same, so it is kept with it.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import msgspec

from router.core.endpoints.delta_template import StreamParts
from router.core.endpoints.frames import text_of_frames
from router.core.endpoints.recorded_response import NotKept, Recording, Usage
from router.core.endpoints.recording import MAX_FRAME, TOO_LONG, whole_stream
from router.core.endpoints.request import Request
from router.core.endpoints.sse import FrameReader, payload, split

NOT_AN_EVENT: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)
"""What reading and taking apart raise for JSON that is not what it should be."""

_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})

_encode = msgspec.json.Encoder().encode


def frame(event: dict[str, Any]) -> bytes:
    """An event as it is sent."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


def says_something(value: Any) -> bool:
    """Whether there is content in it: text, or anything in a list or map."""
    return value not in _EMPTY


class TypedRecorder(ABC):
    """What the recorders of such streams have in common. See recording.Recorder."""

    __slots__ = ("_last", "_limit", "_parts", "_reader", "ended", "failure", "started", "usage")

    MARKS: ClassVar[tuple[bytes, ...]]
    """One of these is in every event that is more than a piece of the answer."""

    def __init__(self, limit: int) -> None:
        """`limit`: the most bytes that an entry may take; a longer answer passes through and is not kept."""
        self._reader = FrameReader()
        self._parts = StreamParts()
        self._limit = limit
        self._last = b""
        self.started = False
        self.ended = False
        self.failure: bytes | None = None
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        if self.ended or self.failure is not None:
            return b""
        frames = self._reader.feed(data)
        if not frames:
            if self._reader.pending > MAX_FRAME:
                self.failure = TOO_LONG
            return frames
        parts = self._parts
        if not self.started or not parts.take(frames):
            only_pieces = self.started and not any(frames.find(mark) >= 0 for mark in self.MARKS)
            if not only_pieces:
                frames = self._sift(frames)
            if not only_pieces or not parts.learn(frames):
                self._keep(frames)
        if parts.size > self._limit:
            parts.forget()
        return frames

    def _keep(self, frames: bytes) -> None:
        self._parts.keep(frames)
        if self.ended:
            self._parts.keep(self._last)

    def _sift(self, frames: bytes) -> bytes:
        passed = []
        for one in split(frames):
            data = payload(one)
            if data == b"[DONE]":  # some engines add it; clients of these endpoints do not know it
                continue
            if data is not None:
                try:
                    self.ended = self._note(data)
                except NOT_AN_EVENT:
                    self.failure = b"an event was not JSON"
                if self.failure is not None:
                    break
                if self.ended:
                    self._last = one
                    break
            passed.append(one)
        return b"".join(passed)

    @abstractmethod
    def _note(self, data: bytes) -> bool:
        """Takes notice of an event; whether it is the last. Sets `failure` for an error, raises NOT_AN_EVENT."""

    @abstractmethod
    def _may_merge(self, begin: bytes, end: bytes) -> bool:
        """Whether the events with this before and after their text may be read as one; see delta_template."""

    @abstractmethod
    def _answer(self, payloads: list[bytes]) -> bytes | NotKept | None:
        """The JSON form of the whole stream, if it has one, or why it is not kept. Raises NOT_AN_EVENT.

        Each run of events that may be merged is one payload.
        """

    def ending(self, *, include_usage: bool) -> bytes:
        return self._last

    @property
    def whole(self) -> bool:
        return self.ended and self.failure is None

    def recording(self, request: Request) -> Recording | NotKept:
        if self.failure is not None:
            return NotKept.ERROR
        if not self.ended:
            return NotKept.INCOMPLETE
        parts = self._parts
        if parts.size > self._limit:
            return NotKept.TOO_LARGE
        if not parts.are_texts():
            return NotKept.ERROR
        events = parts.merged(self._may_merge)
        try:
            body = self._answer([data for one in events if (data := payload(one)) is not None])
        except NOT_AN_EVENT:
            return NotKept.ERROR
        if isinstance(body, NotKept):
            return body
        if body is None:
            return whole_stream(parts, text_of_frames(events), None, self.usage, self._limit, lossless=False)
        return whole_stream(parts, body, None, self.usage, self._limit)
