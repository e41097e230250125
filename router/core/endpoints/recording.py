"""Records a response while it passes to the client; it is stored only if it is complete and ended normally.

A recorder is fed the bytes of a stream. It returns the bytes to forward: complete events, unchanged, without delay.
It withholds two things: the usage event, because the router requests it from every engine and not every client wants
it; and `[DONE]` and error events, because the router writes the end of a stream.

This module has the `Recorder` protocol and the recorder of chats and completions. router.core.endpoints.recorders
maps each endpoint to its recorder.
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
"""Bytes of an incomplete event that a recorder buffers."""

EVENT_TOO_LONG: Final = b"an event was too long"
"""The `failure` for an event over MAX_EVENT_SIZE. The limit is the router's, so this is no failure of the engine."""

_encode = msgspec.json.Encoder().encode

# Finish reasons with which vLLM cuts a choice off.
_ABNORMAL_FINISH_REASONS: Final = ("abort", "error")

_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})


class Recorder(Protocol):
    """One stream, from its first byte to its last.

    - `started`: the first token has arrived. A comment or an event without content is no token.
    - `failure`: the payload of the engine's error event, or what is wrong with the bytes that it sent.
    - `ended`: the engine has sent the event that ends a stream of this endpoint.
    - `is_complete`: the stream has ended, and without a failure.
    - `usage`: the token counts that the engine has reported; None until then.
    """

    started: bool
    ended: bool
    failure: bytes | None
    usage: ReportedUsage | None

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the stream; returns the bytes to forward now, possibly none.

        Ignores all bytes after the end of the stream, normal or not.
        """

    def final_frames(self, *, include_usage: bool) -> bytes:
        """The last bytes for the client. Send them only after the recorded response is passed to the store."""

    @property
    def is_complete(self) -> bool: ...

    def recorded_response(self, request: InferenceRequest) -> "RecordedResponse | NotStoredReason": ...


# An event of a started stream is read only if it contains one of these. Inside of a JSON string, the quotes of a name
# are escaped, so generated text matches only `[DONE]`; then the event is read, and forwarded unchanged.
_NON_TEXT_MARKERS: Final = (b'"usage"', b'"error"', b"[DONE]")


def _is_only_text(frames: bytes) -> bool:
    # `find`, not `in`: for bytes, `in` first tries its operand as an integer, and raises and discards a TypeError.
    find = frames.find
    return find(b'"usage"') < 0 and find(b'"error"') < 0 and find(b"[DONE]") < 0


def _text_prefix_length(frames: bytes) -> int:
    # Up to the end of the last event before the first marker.
    first = min((at for marker in _NON_TEXT_MARKERS if (at := frames.find(marker)) >= 0), default=len(frames))
    end = frames.rfind(b"\n\n", 0, first)
    return end + 2 if end >= 0 else 0


class StreamRecorder:
    """Records the stream of a chat or of completions, which ends with `[DONE]`. See Recorder.

    An event that has only a role is no token. Most events differ only in their text (see delta_template); only the
    others are decoded.
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
        """`limit`: the maximum size of an entry in bytes; a longer response is forwarded and not stored.

        `shapes`: with them, the JSON form of most streams is made without decoding their events.
        """
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
        # Before the first token each event is decoded, since a template says nothing of whether there is content.
        # After it, most chunks match a template, and nothing more is looked at.
        if not self.started or not parts.try_append(frames):
            only_text = self.started and _is_only_text(frames)
            if not only_text:
                frames = self._filter_events(frames)
            if not only_text or not parts.learn_template(frames):
                parts.append(frames)
        if parts.size > self._limit:
            parts.discard()  # frees the memory; `size` stays over the limit, and `recorded_response` goes by it
        return frames

    def _filter_events(self, frames: bytes) -> bytes:
        begin = _text_prefix_length(frames) if self.started else 0
        forwarded = [frames[:begin]]
        events = iter(split_events(frames[begin:]))
        for frame in events:
            was_started = self.started
            if was_started and _is_only_text(frame):
                forwarded.append(frame)
                continue
            data = payload(frame)
            if data is None:
                forwarded.append(frame)
            elif data == b"[DONE]":
                self.ended = True
            elif self._is_forwarded(frame, data):
                forwarded.append(frame)
            if self.ended or self.failure is not None:
                break
            if self.started and not was_started and (rest := b"".join(events)):
                # This was the first token. Most of the rest is text, which `_text_prefix_length` skips in one search.
                # The recursion is one call deep, since `started` is set now; `events` is exhausted.
                forwarded.append(self._filter_events(rest))
        return b"".join(forwarded)

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
            if not event.choices:  # usage beside choices is part of the response, and is forwarded
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
        # The size comes first: what was discarded has no texts, so the later checks would pass.
        if parts.size > self._limit:
            return NotStoredReason.TOO_LARGE
        if not parts.has_valid_texts():
            return NotStoredReason.ERROR
        if self._shapes is not None:
            filled = self._shapes.fill(request.endpoint, parts, self._usage_frame, self._usage_json)
            if filled is not None:
                body, ended = filled
                bad = _not_stored_reason(request, ended, has_content=self.started)
                return bad or record_stream(parts, body, self._usage_frame, self.usage, self._limit)
        events = parts.merged_events(partial(may_merge, request.endpoint))
        try:
            parsed = parse_frames(events)
            reasons = finish_reasons(parsed)
        except EVENT_PARSE_ERRORS:
            return NotStoredReason.ERROR  # not JSON, or JSON of another form than events have
        bad = _not_stored_reason(request, list(reasons.values()), has_content=self.started)
        if bad is not None:
            return bad
        joined = join_events(request.endpoint, parsed, self._usage_frame)
        if joined is None:
            # No JSON body says the same. The entry then serves streams only; its body is the text, for people.
            return record_stream(
                parts, extract_text(events), self._usage_frame, self.usage, self._limit, lossless=False
            )
        return record_stream(parts, joined, self._usage_frame, self.usage, self._limit)


def record_choices(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    try:
        response = decode_chat_response(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NotStoredReason.ERROR
    if response.error is not None:
        return NotStoredReason.ERROR
    reasons = [choice.finish_reason for choice in response.choices]
    bad = _not_stored_reason(request, reasons, has_content=_has_content(response.choices))
    return bad if bad is not None else record_json(body, parse_usage(response.usage), limit)


def record_json(body: bytes, usage: ReportedUsage | None, limit: int) -> RecordedResponse | NotStoredReason:
    """What to store of a JSON response that the caller has checked; TOO_LARGE over `limit` bytes."""
    return _to_recorded_response(body, None, usage, limit)


def record_stream(
    parts: StreamParts, body: bytes, usage_frame: bytes | None, usage: ReportedUsage | None, limit: int, *,
    lossless: bool = True,
) -> RecordedResponse | NotStoredReason:  # fmt: skip
    """What to store of a stream that the caller has checked; TOO_LARGE over `limit` bytes.

    `lossless`: `body` has all the information of the events, so it can answer requests for JSON.
    """
    try:
        stream = encode_stream(parts, body, usage_frame, lossless=lossless)
    except ValueError:  # over stream_encoding.MAX_DECODED
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
    """`reasons`: the finish reason of each choice, or what an engine sent in its place."""
    if len(reasons) < _expected_choices(request):
        return NotStoredReason.INCOMPLETE
    for reason in reasons:
        if not reason or reason in _ABNORMAL_FINISH_REASONS:
            return NotStoredReason.INCOMPLETE
    return None if has_content else NotStoredReason.EMPTY


def _expected_choices(request: InferenceRequest) -> int:
    n = request.fields.get("n")
    count = n if isinstance(n, int) else 1
    if request.endpoint is Endpoint.COMPLETIONS:
        prompt = request.fields["prompt"]
        # A list of integers is one prompt, as token ids; any other list has a prompt in each item.
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            return count * len(prompt)
    return count


def _has_content(choices: list[ResponseChoice]) -> bool:
    for choice in choices:
        # A true value needs no comparison. Of the others, 0 and false are content.
        if choice.text or choice.text not in _EMPTY_VALUES:
            return True
        part = choice.delta or choice.message
        if isinstance(part, dict):
            for name, value in part.items():  # also fields that are not known here
                if name != "role" and (value or value not in _EMPTY_VALUES):
                    return True
    return False
