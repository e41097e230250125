"""What passes through to the client is recorded, and kept only if it is a whole, well-ended answer.

A recorder is fed the bytes of a stream and gives back those that may go on: whole events, unchanged, at once. Two
things it holds back. The usage event, because the router asks every engine for it and not every client wants it; and
`[DONE]` and errors, because how a stream ends is for the router to say.

Here is what recorders promise, and the recorder of chats and completions; router.core.recorders has one for each
endpoint.
"""

from typing import Any, Final, Protocol

import msgspec

from router.core.alike import Alike
from router.core.answers import Choice, NotKept, Recording, Usage, outcomes, read_answer, read_event, read_usage
from router.core.request import Request
from router.core.sse import DONE, FrameReader, payload, split
from router.core.types import Endpoint

MAX_FRAME: Final = 8 * 1024 * 1024
"""Bytes of one event that may wait for their end."""

TOO_LONG: Final = b"an event was too long"
"""The `failure` of a recorder for an event over MAX_FRAME: the limit is ours, so the engine has not failed."""

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
        "_alike", "_kept", "_limit", "_others", "_reader", "_size", "_usage_frame", "ended", "failure", "started",
        "usage",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        """`limit` is the most bytes that are kept; a longer stream passes through unrecorded."""
        self._reader = FrameReader()
        self._alike = Alike()
        self._kept: list[bytes] = []
        self._others: list[bytes] = []  # of what is kept, that which is not alike
        self._size = 0
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
        if not self.started or not self._alike.take(frames):
            if self.started and _is_only_text(frames):
                self._alike.learn(frames)
            else:
                frames = self._sift(frames)
            self._others.append(frames)
        size = self._size = self._size + len(frames)
        if size <= self._limit:
            self._kept.append(frames)
        else:
            self._kept.clear()
            self._others.clear()
            self._alike.forget()
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
        if self._size > self._limit:
            return NotKept.TOO_LARGE
        try:
            told = outcomes(b"".join(self._others))  # those that are alike say nothing of how it ended
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return NotKept.ERROR  # JSON, but not the events of an answer
        if not self._alike.are_texts():
            return NotKept.ERROR
        reasons: dict[int, Any] = {}
        for outcome in told:
            for choice in outcome.choices or ():
                if choice.finish_reason or choice.index not in reasons:
                    reasons[choice.index] = choice.finish_reason
        bad = _verdict(request, list(reasons.values()), said=self.started)
        if bad is not None:
            return bad
        used = self.usage or Usage()
        return Recording(
            body=None,  # whoever wants it can have it made of the frames, which few do
            frames=b"".join(self._kept),
            usage_frame=self._usage_frame,
            prompt_tokens=used.prompt_tokens,
            completion_tokens=used.completion_tokens,
        )


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
    if len(body) > limit:
        return NotKept.TOO_LARGE
    used = usage or Usage()
    return Recording(
        body=body,
        frames=None,
        usage_frame=None,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
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
