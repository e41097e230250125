"""Streams of typed events: `event:` lines, a `type` in each payload, and a final event instead of `[DONE]`.

/v1/responses and /v1/messages stream like this. Their final event (`response.completed`, `message_stop`) is withheld as
`[DONE]` is: it is sent only after the response is passed to the store, so a client that has received the end finds the
entry. Unlike `[DONE]`, the final event is part of the response, so it is stored with it.
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
"""What decoding and reading events or responses raise for bytes of another form."""

_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})

_encode = msgspec.json.Encoder().encode


def encode_event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


def is_nonempty(value: Any) -> bool:
    return value not in _EMPTY_VALUES


class TypedRecorder(ABC):
    """Base of the recorders of typed events. See recording.Recorder and, for `limit`, StreamRecorder."""

    __slots__ = ("_event_buffer", "_final_frame", "_limit", "_parts", "ended", "failure", "started", "usage")

    NON_TEXT_MARKERS: ClassVar[tuple[bytes, ...]]
    """Each event that a started stream must have decoded contains one of these; the others only have text."""

    def __init__(self, limit: int) -> None:
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
        # As in StreamRecorder: before the first token each event is decoded, after it most match a template.
        if not self.started or not parts.try_append(frames):
            only_text = self.started and not any(frames.find(marker) >= 0 for marker in self.NON_TEXT_MARKERS)
            if not only_text:
                frames = self._filter_events(frames)
            if not only_text or not parts.learn_template(frames):
                self._append(frames)
        if parts.size > self._limit:
            parts.discard()  # frees the memory; `size` stays over the limit, and `recorded_response` goes by it
        return frames

    def _append(self, frames: bytes) -> None:
        self._parts.append(frames)
        if self.ended:
            self._parts.append(self._final_frame)

    def _filter_events(self, frames: bytes) -> bytes:
        forwarded = []
        for frame in split_events(frames):
            data = payload(frame)
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
                    self._final_frame = frame
                    break
            forwarded.append(frame)
        return b"".join(forwarded)

    @abstractmethod
    def _on_event(self, data: bytes) -> bool:
        """Handles the payload of an event; returns whether it is the final one.

        Sets `started`, `usage`, and `failure` for an error event. Raises TYPED_EVENT_ERRORS.
        """

    @abstractmethod
    def _may_merge(self, begin: bytes, end: bytes) -> bool: ...

    @abstractmethod
    def _build_body(self, payloads: list[bytes]) -> bytes | NotStoredReason | None:
        """The JSON body, or why nothing is stored; None if no JSON has all the information of the events.

        `payloads`: those of all events, with each run of events that may be merged as one. Raises TYPED_EVENT_ERRORS.
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
        # The size comes first: what was discarded has no texts, so the later checks would pass.
        if parts.size > self._limit:
            return NotStoredReason.TOO_LARGE
        if not parts.has_valid_texts():
            return NotStoredReason.ERROR
        events = parts.merged_events(self._may_merge)
        try:
            body = self._build_body([data for frame in events if (data := payload(frame)) is not None])
        except TYPED_EVENT_ERRORS:
            return NotStoredReason.ERROR
        if isinstance(body, NotStoredReason):
            return body
        if body is None:
            return record_stream(parts, extract_text(events), None, self.usage, self._limit, lossless=False)
        return record_stream(parts, body, None, self.usage, self._limit)
