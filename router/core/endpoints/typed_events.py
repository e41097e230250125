"""Streams whose events say what they are: `event:` lines, a `type` in each payload, and a last event of their own.

/v1/responses and /v1/messages stream like that. Their last event (`response.completed`, `message_stop`) is to their
clients what `[DONE]` is to others, and is held back like that: it goes out only when the answer is in the hands of the
store, so that who has seen the end finds the answer there. It is the answer's own all the same, so it is kept with it.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import msgspec

from router.core.endpoints.delta_template import StreamParts
from router.core.endpoints.frames import extract_text
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse, ReportedUsage
from router.core.endpoints.recording import EVENT_TOO_LONG, MAX_EVENT_SIZE, record_stream
from router.core.endpoints.request import InferenceRequest
from router.core.endpoints.sse import EventBuffer, payload, split_events

TYPED_EVENT_ERRORS: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)
"""What reading and taking apart raise for JSON that is not what it should be."""

_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})

_encode = msgspec.json.Encoder().encode


def encode_event(event: dict[str, Any]) -> bytes:
    """An event as it is sent."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


def is_nonempty(value: Any) -> bool:
    """Whether there is content in it: text, or anything in a list or map."""
    return value not in _EMPTY_VALUES


class TypedRecorder(ABC):
    """What the recorders of such streams have in common. See recording.Recorder."""

    __slots__ = ("_event_buffer", "_final_frame", "_limit", "_parts", "ended", "failure", "started", "usage")

    NON_TEXT_MARKERS: ClassVar[tuple[bytes, ...]]
    """One of these is in every event that is more than a piece of the answer."""

    def __init__(self, limit: int) -> None:
        """`limit`: the most bytes that an entry may take; a longer answer passes through and is not kept."""
        self._event_buffer = EventBuffer()
        self._parts = StreamParts()
        self._limit = limit
        self._final_frame = b""
        self.started = False
        self.ended = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None

    def feed(self, data: bytes) -> bytes:
        if self.ended or self.failure is not None:
            return b""
        frames = self._event_buffer.feed(data)
        if not frames:
            if self._event_buffer.pending > MAX_EVENT_SIZE:
                self.failure = EVENT_TOO_LONG
            return frames
        parts = self._parts
        if not self.started or not parts.try_append(frames):
            only_pieces = self.started and not any(frames.find(mark) >= 0 for mark in self.NON_TEXT_MARKERS)
            if not only_pieces:
                frames = self._filter_events(frames)
            if not only_pieces or not parts.learn_template(frames):
                self._append(frames)
        if parts.size > self._limit:
            parts.discard()
        return frames

    def _append(self, frames: bytes) -> None:
        self._parts.append(frames)
        if self.ended:
            self._parts.append(self._final_frame)

    def _filter_events(self, frames: bytes) -> bytes:
        passed = []
        for one in split_events(frames):
            data = payload(one)
            if data == b"[DONE]":  # some engines add it; clients of these endpoints do not know it
                continue
            if data is not None:
                try:
                    self.ended = self._on_event(data)
                except TYPED_EVENT_ERRORS:
                    self.failure = b"an event was not JSON"
                if self.failure is not None:
                    break
                if self.ended:
                    self._final_frame = one
                    break
            passed.append(one)
        return b"".join(passed)

    @abstractmethod
    def _on_event(self, data: bytes) -> bool:
        """Takes notice of an event; whether it is the last. Sets `failure` for an error, raises NOT_AN_EVENT."""

    @abstractmethod
    def _may_merge(self, begin: bytes, end: bytes) -> bool:
        """Whether the events with this before and after their text may be read as one; see delta_template."""

    @abstractmethod
    def _build_body(self, payloads: list[bytes]) -> bytes | NotStoredReason | None:
        """The JSON form of the whole stream, if it has one, or why it is not kept. Raises NOT_AN_EVENT.

        Each run of events that may be merged is one payload.
        """

    def final_frames(self, *, include_usage: bool) -> bytes:
        return self._final_frame

    @property
    def is_complete(self) -> bool:
        return self.ended and self.failure is None

    def recorded_response(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason:
        if self.failure is not None:
            return NotStoredReason.ERROR
        if not self.ended:
            return NotStoredReason.INCOMPLETE
        parts = self._parts
        if parts.size > self._limit:
            return NotStoredReason.TOO_LARGE
        if not parts.has_valid_texts():
            return NotStoredReason.ERROR
        events = parts.merged_events(self._may_merge)
        try:
            body = self._build_body([data for one in events if (data := payload(one)) is not None])
        except TYPED_EVENT_ERRORS:
            return NotStoredReason.ERROR
        if isinstance(body, NotStoredReason):
            return body
        if body is None:
            return record_stream(parts, extract_text(events), None, self.usage, self._limit, lossless=False)
        return record_stream(parts, body, None, self.usage, self._limit)
