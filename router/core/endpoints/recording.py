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
from router.core.endpoints.frames import NOT_EVENTS, body_of_events, events_of_frames, finish_reasons, text_of_frames
from router.core.endpoints.recorded_response import (
    Choice,
    NotKept,
    Recording,
    Usage,
    read_answer,
    read_event,
    read_usage,
)
from router.core.endpoints.request import Request
from router.core.endpoints.sse import DONE, FrameReader, payload, split
from router.core.endpoints.stream_encoding import encode_stream
from router.core.types import Endpoint

MAX_FRAME: Final = 8 * 1024 * 1024
"""Bytes of one event that may wait for their end."""

TOO_LONG: Final = b"an event was too long"
"""The `failure` of a recorder for an event over MAX_FRAME: the limit is ours, so the engine has not failed."""

_encode = msgspec.json.Encoder().encode

_NOT_WELL: Final = ("abort", "error")
"""Finish reasons of vLLM that end a choice before its end."""

_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


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
    usage: Usage | None

    def feed(self, data: bytes) -> bytes:
        """Takes what came; returns what may go on to the client now, which may be nothing.

        Nothing counts that comes after the end, whether it was a good one or not.
        """

    def ending(self, *, include_usage: bool) -> bytes:
        """The last bytes for the client of a stream that ended well; not before the answer is in the store's hands."""

    @property
    def whole(self) -> bool:
        """Whether the stream ended as the engine meant it to end."""

    def recording(self, request: Request) -> "Recording | NotKept":
        """What is to be stored of the stream, or why nothing is."""


_MARKS: Final = (b'"usage"', b'"error"', b"[DONE]")


def _is_only_text(frames: bytes) -> bool:
    """Whether there is nothing but text in it: a quoted name cannot stand inside a JSON string unescaped."""
    # Not `in`, which for bytes asks first whether it was given a number, and raises an error that nobody sees.
    find = frames.find
    return find(b'"usage"') < 0 and find(b'"error"') < 0 and find(b"[DONE]") < 0


def _text_before(frames: bytes) -> int:
    """How many bytes of whole events stand before the first that may be more than text."""
    first = min((at for mark in _MARKS if (at := frames.find(mark)) >= 0), default=len(frames))
    end = frames.rfind(b"\n\n", 0, first)
    return end + 2 if end >= 0 else 0


class StreamRecorder:
    """The stream of a chat or of completions: it ends with `[DONE]`. See Recorder.

    An event with nothing but a role is no token. Most events are alike but for their text; only the others are read.
    """

    __slots__ = (
        "_limit", "_parts", "_reader", "_shapes", "_usage_frame", "_usage_json", "ended", "failure", "started", "usage",
    )  # fmt: skip

    def __init__(self, limit: int, shapes: AnswerShapes | None = None) -> None:
        """`limit`: the most bytes that an entry may take; a longer answer passes through and is not kept."""
        self._reader = FrameReader()
        self._parts = StreamParts()
        self._shapes = shapes
        self._usage_json: bytes | None = None
        self._limit = limit
        self._usage_frame: bytes | None = None
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
            only_text = self.started and _is_only_text(frames)
            if not only_text:
                frames = self._sift(frames)
            if not only_text or not parts.learn(frames):
                parts.keep(frames)
        if parts.size > self._limit:
            parts.forget()
        return frames

    def _sift(self, frames: bytes) -> bytes:
        begin = _text_before(frames) if self.started else 0
        passed = [frames[:begin]]
        events = iter(split(frames[begin:]))
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
            elif self._passes(frame, data):
                passed.append(frame)
            if self.ended or self.failure is not None:
                break
            if self.started and not started and (rest := b"".join(events)):
                passed.append(self._sift(rest))  # of which most is text
        return b"".join(passed)

    def _passes(self, frame: bytes, data: bytes) -> bool:
        try:
            event = read_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = b"an event was not JSON"
            return False
        if event.error is not None:
            self.failure = data
            return False
        if event.usage is not None:
            self.usage = read_usage(event.usage) or self.usage
            if not event.choices:
                self._usage_frame = frame
                self._usage_json = _encode(event.usage)
                return False
        self.started = self.started or _say_something(event.choices or [])
        return True

    def ending(self, *, include_usage: bool) -> bytes:
        return (self._usage_frame or b"") + DONE if include_usage else DONE

    @property
    def whole(self) -> bool:
        return self.ended and self.failure is None

    def recording(self, request: Request) -> Recording | NotKept:
        if self.failure is not None:
            return NotKept.ERROR
        if not self.whole:
            return NotKept.INCOMPLETE
        parts = self._parts
        if parts.size > self._limit:
            return NotKept.TOO_LARGE
        if not parts.are_texts():
            return NotKept.ERROR
        if self._shapes is not None:
            answer = self._shapes.answer(request.endpoint, parts, self._usage_frame, self._usage_json)
            if answer is not None:
                body, ended = answer
                bad = _verdict(request, ended, said=self.started)
                return bad or whole_stream(parts, body, self._usage_frame, self.usage, self._limit)
        events = parts.merged(partial(may_merge, request.endpoint))
        try:
            parsed = events_of_frames(events)
            reasons = finish_reasons(parsed)
        except NOT_EVENTS:
            return NotKept.ERROR  # JSON, but not the events of an answer
        bad = _verdict(request, list(reasons.values()), said=self.started)
        if bad is not None:
            return bad
        made = body_of_events(request.endpoint, parsed, self._usage_frame)
        if made is None:
            return whole_stream(
                parts, text_of_frames(events), self._usage_frame, self.usage, self._limit, lossless=False
            )
        return whole_stream(parts, made, self._usage_frame, self.usage, self._limit)


def record_choices(request: Request, body: bytes, limit: int) -> Recording | NotKept:
    """What is to be stored of the JSON answer of a chat or of completions, or why nothing is."""
    try:
        answer = read_answer(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NotKept.ERROR
    if answer.error is not None:
        return NotKept.ERROR
    reasons = [choice.finish_reason for choice in answer.choices]
    bad = _verdict(request, reasons, said=_say_something(answer.choices))
    return bad if bad is not None else whole_body(body, read_usage(answer.usage), limit)


def whole_body(body: bytes, usage: Usage | None, limit: int) -> Recording | NotKept:
    """What is to be stored of a JSON answer that is whole and ended well."""
    return _recording(body, None, usage, limit)


def whole_stream(
    parts: StreamParts, body: bytes, usage_frame: bytes | None, usage: Usage | None, limit: int, *,
    lossless: bool = True,
) -> Recording | NotKept:  # fmt: skip
    """What is to be stored of a stream that is whole and ended well; `lossless`: `body` says all that it said."""
    try:
        stream = encode_stream(parts, body, usage_frame, lossless=lossless)
    except ValueError:
        return NotKept.TOO_LARGE
    return _recording(body, stream, usage, limit)


def _recording(body: bytes, stream: bytes | None, usage: Usage | None, limit: int) -> Recording | NotKept:
    if len(body) + len(stream or b"") > limit:
        return NotKept.TOO_LARGE
    used = usage or Usage()
    return Recording(
        body=body, stream=stream, prompt_tokens=used.prompt_tokens, completion_tokens=used.completion_tokens
    )


def _verdict(request: Request, reasons: list[Any], *, said: bool) -> NotKept | None:
    """`reasons` has the finish reason of each choice, if it has one; `said`: any says something."""
    if len(reasons) < _expected(request):
        return NotKept.INCOMPLETE
    for reason in reasons:
        if not reason or reason in _NOT_WELL:
            return NotKept.INCOMPLETE
    return None if said else NotKept.EMPTY


def _expected(request: Request) -> int:
    """How many choices the answer must have."""
    n = request.fields.get("n")
    count = n if isinstance(n, int) else 1
    if request.endpoint is Endpoint.COMPLETIONS:
        prompt = request.fields["prompt"]
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            return count * len(prompt)
    return count


def _say_something(choices: list[Choice]) -> bool:
    """Whether any of the choices, or of an event's pieces of them, has any text, call or other content in it."""
    for choice in choices:
        if choice.text or choice.text not in _EMPTY:
            return True
        part = choice.delta or choice.message
        if isinstance(part, dict):
            for name, value in part.items():
                if name != "role" and (value or value not in _EMPTY):
                    return True
    return False
