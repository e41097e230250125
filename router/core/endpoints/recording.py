"""What passes through to the client is recorded, and kept only if it is a whole, well-ended answer.

A recorder is fed the bytes of a stream and gives back those that may go on: whole events, unchanged, at once. Two
things it holds back. The usage event, because the router asks every engine for it and not every client wants it; and
`[DONE]` and errors, because how a stream ends is for the router to say.

Here is what recorders promise, and the recorder of chats and completions; router.core.endpoints.recorders has one for
each endpoint.
"""

from functools import partial
from typing import Any, Final, Protocol

import msgspec

from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.delta_merge import may_merge
from router.core.endpoints.delta_template import StreamParts
from router.core.endpoints.frames import EVENT_PARSE_ERRORS, extract_text, finish_reasons, join_events, parse_frames
from router.core.endpoints.recorded_response import (
    NotStoredReason,
    RecordedResponse,
    ReportedUsage,
    ResponseChoice,
    decode_chat_event,
    decode_chat_response,
    parse_usage,
)
from router.core.endpoints.request import InferenceRequest
from router.core.endpoints.sse import DONE, EventBuffer, payload, split_events
from router.core.endpoints.stream_encoding import encode_stream
from router.core.types import Endpoint

MAX_EVENT_SIZE: Final = 8 * 1024 * 1024
"""Bytes of one event that may wait for their end."""

EVENT_TOO_LONG: Final = b"an event was too long"
"""The `failure` of a recorder for an event over MAX_FRAME: the limit is ours, so the engine has not failed."""

_encode = msgspec.json.Encoder().encode

_ABNORMAL_FINISH_REASONS: Final = ("abort", "error")
"""Finish reasons of vLLM that end a choice before its end."""

_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})


class Recorder(Protocol):
    """One stream, from its first byte to its last.

    - `started`: a token has come; an event without content, or a comment, is none.
    - `failure`: the payload of the error that the engine reported, or what was wrong with what it sent.
    - `ended`: the engine has said that this was all.
    - `usage`: what the engine said it used, once it did.
    """

    started: bool
    ended: bool
    failure: bytes | None
    usage: ReportedUsage | None

    def feed(self, data: bytes) -> bytes:
        """Takes what came; returns what may go on to the client now, which may be nothing.

        Nothing counts that comes after the end, whether it was a good one or not.
        """

    def final_frames(self, *, include_usage: bool) -> bytes:
        """The last bytes for the client of a stream that ended well; not before the answer is in the store's hands."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended as the engine meant it to end."""

    def recorded_response(self, request: InferenceRequest) -> "RecordedResponse | NotStoredReason":
        """What is to be stored of the stream, or why nothing is."""


_NON_TEXT_MARKERS: Final = (b'"usage"', b'"error"', b"[DONE]")


def _is_only_text(frames: bytes) -> bool:
    """Whether there is nothing but text in it: a quoted name cannot stand inside a JSON string unescaped."""
    # Not `in`, which for bytes asks first whether it was given a number, and raises an error that nobody sees.
    find = frames.find
    return find(b'"usage"') < 0 and find(b'"error"') < 0 and find(b"[DONE]") < 0


def _text_prefix_length(frames: bytes) -> int:
    """How many bytes of whole events stand before the first that may be more than text."""
    first = min((at for mark in _NON_TEXT_MARKERS if (at := frames.find(mark)) >= 0), default=len(frames))
    end = frames.rfind(b"\n\n", 0, first)
    return end + 2 if end >= 0 else 0


class StreamRecorder:
    """The stream of a chat or of completions: it ends with `[DONE]`. See Recorder.

    An event with nothing but a role is no token. Most events are alike but for their text; only the others are read.
    """

    __slots__ = (
        "_event_buffer",
        "_limit",
        "_parts",
        "_shapes",
        "_usage_frame",
        "_usage_json",
        "ended",
        "failure",
        "started",
        "usage",
    )  # fmt: skip

    def __init__(self, limit: int, shapes: AnswerShapes | None = None) -> None:
        """`limit`: the most bytes that an entry may take; a longer answer passes through and is not kept."""
        self._event_buffer = EventBuffer()
        self._parts = StreamParts()
        self._shapes = shapes
        self._usage_json: bytes | None = None
        self._limit = limit
        self._usage_frame: bytes | None = None
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
            only_text = self.started and _is_only_text(frames)
            if not only_text:
                frames = self._filter_events(frames)
            if not only_text or not parts.learn_template(frames):
                parts.append(frames)
        if parts.size > self._limit:
            parts.discard()
        return frames

    def _filter_events(self, frames: bytes) -> bytes:
        begin = _text_prefix_length(frames) if self.started else 0
        passed = [frames[:begin]]
        events = iter(split_events(frames[begin:]))
        for frame in events:
            started = self.started
            if started and _is_only_text(frame):
                passed.append(frame)
                continue
            data = payload(frame)
            if data is None:
                passed.append(frame)
            elif data == b"[DONE]":
                self.ended = True
            elif self._is_forwarded(frame, data):
                passed.append(frame)
            if self.ended or self.failure is not None:
                break
            if self.started and not started and (rest := b"".join(events)):
                passed.append(self._filter_events(rest))  # of which most is text
        return b"".join(passed)

    def _is_forwarded(self, frame: bytes, data: bytes) -> bool:
        try:
            event = decode_chat_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = b"an event was not JSON"
            return False
        if event.error is not None:
            self.failure = data
            return False
        if event.usage is not None:
            self.usage = parse_usage(event.usage) or self.usage
            if not event.choices:
                self._usage_frame = frame
                self._usage_json = _encode(event.usage)
                return False
        self.started = self.started or _has_content(event.choices or [])
        return True

    def final_frames(self, *, include_usage: bool) -> bytes:
        return (self._usage_frame or b"") + DONE if include_usage else DONE

    @property
    def is_complete(self) -> bool:
        return self.ended and self.failure is None

    def recorded_response(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason:
        if self.failure is not None:
            return NotStoredReason.ERROR
        if not self.is_complete:
            return NotStoredReason.INCOMPLETE
        parts = self._parts
        if parts.size > self._limit:
            return NotStoredReason.TOO_LARGE
        if not parts.has_valid_texts():
            return NotStoredReason.ERROR
        if self._shapes is not None:
            answer = self._shapes.fill(request.endpoint, parts, self._usage_frame, self._usage_json)
            if answer is not None:
                body, ended = answer
                bad = _not_stored_reason(request, ended, has_content=self.started)
                return bad or record_stream(parts, body, self._usage_frame, self.usage, self._limit)
        events = parts.merged_events(partial(may_merge, request.endpoint))
        try:
            parsed = parse_frames(events)
            reasons = finish_reasons(parsed)
        except EVENT_PARSE_ERRORS:
            return NotStoredReason.ERROR  # JSON, but not the events of an answer
        bad = _not_stored_reason(request, list(reasons.values()), has_content=self.started)
        if bad is not None:
            return bad
        made = join_events(request.endpoint, parsed, self._usage_frame)
        if made is None:
            return record_stream(
                parts, extract_text(events), self._usage_frame, self.usage, self._limit, lossless=False
            )
        return record_stream(parts, made, self._usage_frame, self.usage, self._limit)


def record_choices(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    """What is to be stored of the JSON answer of a chat or of completions, or why nothing is."""
    try:
        answer = decode_chat_response(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NotStoredReason.ERROR
    if answer.error is not None:
        return NotStoredReason.ERROR
    reasons = [choice.finish_reason for choice in answer.choices]
    bad = _not_stored_reason(request, reasons, has_content=_has_content(answer.choices))
    return bad if bad is not None else record_json(body, parse_usage(answer.usage), limit)


def record_json(body: bytes, usage: ReportedUsage | None, limit: int) -> RecordedResponse | NotStoredReason:
    """What is to be stored of a JSON answer that is whole and ended well."""
    return _to_recorded_response(body, None, usage, limit)


def record_stream(
    parts: StreamParts, body: bytes, usage_frame: bytes | None, usage: ReportedUsage | None, limit: int, *,
    lossless: bool = True,
) -> RecordedResponse | NotStoredReason:  # fmt: skip
    """What is to be stored of a stream that is whole and ended well; `lossless`: `body` says all that it said."""
    try:
        stream = encode_stream(parts, body, usage_frame, lossless=lossless)
    except ValueError:
        return NotStoredReason.TOO_LARGE
    return _to_recorded_response(body, stream, usage, limit)


def _to_recorded_response(
    body: bytes, stream: bytes | None, usage: ReportedUsage | None, limit: int
) -> RecordedResponse | NotStoredReason:
    if len(body) + len(stream or b"") > limit:
        return NotStoredReason.TOO_LARGE
    used = usage or ReportedUsage()
    return RecordedResponse(
        body=body, stream=stream, prompt_tokens=used.prompt_tokens, completion_tokens=used.completion_tokens
    )


def _not_stored_reason(request: InferenceRequest, reasons: list[Any], *, has_content: bool) -> NotStoredReason | None:
    """`reasons` has the finish reason of each choice, if it has one; `said`: any says something."""
    if len(reasons) < _expected_choices(request):
        return NotStoredReason.INCOMPLETE
    for reason in reasons:
        if not reason or reason in _ABNORMAL_FINISH_REASONS:
            return NotStoredReason.INCOMPLETE
    return None if has_content else NotStoredReason.EMPTY


def _expected_choices(request: InferenceRequest) -> int:
    """How many choices the answer must have."""
    n = request.fields.get("n")
    count = n if isinstance(n, int) else 1
    if request.endpoint is Endpoint.COMPLETIONS:
        prompt = request.fields["prompt"]
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            return count * len(prompt)
    return count


def _has_content(choices: list[ResponseChoice]) -> bool:
    """Whether any of the choices, or of an event's pieces of them, has any text, call or other content in it."""
    for choice in choices:
        if choice.text or choice.text not in _EMPTY_VALUES:
            return True
        part = choice.delta or choice.message
        if isinstance(part, dict):
            for name, value in part.items():
                if name != "role" and (value or value not in _EMPTY_VALUES):
                    return True
    return False
