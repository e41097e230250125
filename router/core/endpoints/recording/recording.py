"""Records a response while it passes to the client; it is stored only if it is complete and ended normally.

A recorder is fed the bytes of a stream. It returns the bytes to forward: complete events, unchanged, without delay.
It withholds three things: the usage event, because the router requests it from every engine and not every client wants
it; the end of the stream and error events, because the router writes the end of a stream; and events without data,
which some clients cannot read.

This module has what all recorders share. choices_recorder has the recorder of chats and completions, typed_events that
of the other streams.
"""

from abc import ABC, abstractmethod
from typing import Final

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import unfinished_error
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.recorded_response import (
    NotStoredReason,
    RecordedResponse,
    ReportedUsage,
    RequestSpeculation,
)
from router.core.endpoints.recording.sse import EventBuffer, is_data_event, payload
from router.core.endpoints.recording.stream_encoding import encode_stream
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.core.endpoints.recording.usage import estimate_usage
from router.core.endpoints.requests.engine_fields import names_engine_memory

MAX_EVENT_SIZE: Final = 8 * 1024 * 1024
"""Bytes of an incomplete event that a recorder buffers."""

EVENT_TOO_LONG: Final = b"an event was too long"
"""The `failure` for an event over MAX_EVENT_SIZE. The limit is the router's, so this is no failure of the engine."""


ABORTED: Final = b"an event had the finish reason abort"
"""The `failure` if the engine has cut the response off: vLLM does so when it is stopped."""


class StreamRecorder(ABC):
    """Base of the recorders; see endpoint.Recorder. Most events differ only in their text (see delta_template).

    Only the others are decoded.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: the maximum size of an entry in bytes; a longer response is forwarded and not stored."""
        self._event_buffer = EventBuffer()
        self._parts = StreamParts()
        self._limit = limit
        self.started = False
        self.ended = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None
        self.speculation: RequestSpeculation | None = None
        self.token_ids: TokenIdCutter | None = None  # set where the engine is asked for them

    def feed(self, data: bytes) -> bytes:
        if self.ended or self.failure is not None:
            return b""
        frames = self._event_buffer.feed(data)
        if not frames:
            if self._event_buffer.pending > MAX_EVENT_SIZE:
                self.failure = EVENT_TOO_LONG
            return frames
        parts = self._parts
        if self.token_ids is not None:
            text_event = parts.try_append_with_ids(frames, self.token_ids) if self.started else None
            if text_event is not None:
                self._check_size()
                return text_event
            frames = self.token_ids.cut(frames)
            if not frames:
                return frames
        # Before the first token each event is decoded, since a template says nothing of whether there is content.
        # After it, most chunks match a template, and nothing more is looked at.
        if not self.started or not parts.try_append(frames):
            if self.started and is_data_event(frames) and self._is_only_text(frames):
                parts.append(frames)
            else:
                events = self._filter_events(frames)
                frames = b"".join(events)
                self._append(events)
        self._check_size()
        return frames

    def _check_size(self) -> None:
        if self._parts.size > self._limit:
            self._parts.discard()  # frees the memory; `size` stays over the limit, and `recorded_response` goes by it
            if self.token_ids is not None:
                self.token_ids.discard()

    def feed_end(self) -> bytes:
        rest = self._event_buffer.rest
        line_end = b"\r\n" if rest.endswith(b"\r\n") else b"\n"
        missing = line_end if rest.endswith(b"\n") else line_end * 2
        return self.feed(missing) if _is_whole_event(rest + missing) else b""

    def error_at_end(self) -> bytes | None:
        return unfinished_error(self._event_buffer.rest)

    def end_without_marker(self) -> bool:
        return self.ended  # only for some endpoints the events tell that a response is complete

    def resume(self) -> None:
        """Takes events again after a failure, from another engine. The failed engine's last, partial event is lost."""
        self._event_buffer = EventBuffer()
        self.failure = None

    @abstractmethod
    def final_frames(self, *, include_usage: bool) -> bytes: ...

    @property
    def parts(self) -> StreamParts | None:
        """The events so far; None if there are too many to be recorded."""
        return self._parts if self._parts.size <= self._limit else None

    @property
    def is_complete(self) -> bool:
        return self.ended and self.failure is None

    def recorded_response(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason:
        if self.failure is not None:
            return NotStoredReason.INCOMPLETE if self.failure == ABORTED else NotStoredReason.ERROR
        if not self.ended:
            return NotStoredReason.INCOMPLETE
        if self.usage is None:
            self.usage = estimate_usage(len(request.body), self._parts.size)
        # The size comes first: what was discarded has no texts, so the later checks would pass.
        if self._parts.size > self._limit:
            return NotStoredReason.TOO_LARGE
        if not self._parts.has_valid_texts():
            return NotStoredReason.ERROR
        return self._record_complete(request)

    def _append(self, events: list[bytes]) -> None:
        """Adds the events of a chunk, of which `_filter_events` has taken out what is withheld."""
        self._parts.append_events(events)

    @abstractmethod
    def _is_only_text(self, frames: bytes) -> bool:
        """Whether no event of a stream that has started must be decoded."""

    @abstractmethod
    def _filter_events(self, frames: bytes) -> list[bytes]:
        """The events to forward. Decodes the events, and sets `started`, `ended`, `failure` and `usage` by them."""

    @abstractmethod
    def _record_complete(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason:
        """What to store of a stream that is complete and within the limit, or why nothing is stored."""


def _is_whole_event(frame: bytes) -> bool:
    """Whether an event is not cut off: the beginning of an object is no JSON."""
    data = payload(frame)
    if data is None or data == b"[DONE]":
        return data is not None
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def record_json(
    body: bytes, usage: ReportedUsage | None, limit: int, speculation: RequestSpeculation | None = None
) -> RecordedResponse | NotStoredReason:
    """What to store of a JSON response that the caller has checked; TOO_LARGE over `limit` bytes."""
    return _to_recorded_response(body, None, usage, limit, speculation)


def record_stream(
    parts: StreamParts, body: bytes, usage_frame: bytes | None, usage: ReportedUsage | None, limit: int, *,
    lossless: bool = True,
) -> RecordedResponse | NotStoredReason:  # fmt: skip
    """What to store of a stream that the caller has checked; TOO_LARGE over `limit` bytes.

    `lossless`: `body` has all the information of the events, so it can answer requests for JSON.
    """
    if not lossless and any(map(names_engine_memory, parts.merged_events(lambda _begin, _end: True))):
        return NotStoredReason.ENGINE_MEMORY  # else `body` shows it
    try:
        stream = encode_stream(parts, body, usage_frame, lossless=lossless)
    except ValueError:  # over stream_encoding.MAX_DECODED
        return NotStoredReason.TOO_LARGE
    return _to_recorded_response(body, stream, usage, limit)


def _to_recorded_response(
    body: bytes, stream: bytes | None, usage: ReportedUsage | None, limit: int,
    speculation: RequestSpeculation | None = None,
) -> RecordedResponse | NotStoredReason:  # fmt: skip
    if len(body) + len(stream or b"") > limit:
        return NotStoredReason.TOO_LARGE
    used = usage or ReportedUsage()
    return RecordedResponse(
        body=body, stream=stream, prompt_tokens=used.prompt_tokens, completion_tokens=used.completion_tokens,
        speculation=speculation,
    )  # fmt: skip
