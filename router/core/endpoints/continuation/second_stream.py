"""The recorder of a second engine's stream, whose events become events of the first one's.

Theory of operation. The recorder of the first stream gets the events of the second engine as if the first engine had
sent them. So what it returns for the client, and what it records, is one stream. Until the second engine has sent its
first token, that recorder gets nothing, and another engine can still take over.

A stream that goes on is rare, so each of its events is decoded.
"""

import json
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from router.core.endpoints.errors.engine_errors import is_error_object, unfinished_error
from router.core.endpoints.recording.recorded_response import ReportedUsage, RequestSpeculation
from router.core.endpoints.recording.recording import EVENT_TOO_LONG, MAX_EVENT_SIZE, StreamRecorder
from router.core.endpoints.recording.sse import DONE, EventBuffer, error_payload, is_comment, payload, split_events

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class SecondStream(ABC):
    """A Recorder of a second engine's stream, which passes it on to the recorder of the first one's.

    - The first recorder gets nothing before the second engine's first token, nor if the second fails before it.
    - A subclass rewrites the events one by one.
    """

    def __init__(self, recorder: StreamRecorder) -> None:
        self.started = False
        self.ended = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None  # the first recorder has that of the whole
        self.speculation: RequestSpeculation | None = None  # of a part it would say nothing about the engine
        self._recorder = recorder
        self._buffer = EventBuffer()
        self._held: list[bytes] = []
        self._joined = False

    @abstractmethod
    def _rewrite(self, data: bytes) -> bytes | None:
        """The events for the client in place of the one with this payload; None if there are none.

        Sets `started` at the first token, `ended` and `failure`.
        """

    @abstractmethod
    def _join(self) -> None:
        """From now on, the stream is this engine's. It must call `resume` of the first recorder."""

    @property
    def is_complete(self) -> bool:
        return self.ended and self.failure is None

    def feed(self, data: bytes) -> bytes:
        if self.ended or self.failure is not None:
            return b""
        frames = self._buffer.feed(data)
        if not frames:
            if self._buffer.pending > MAX_EVENT_SIZE:
                self.failure = EVENT_TOO_LONG
            return b""
        return self._pass_on(self._rewrite_all(frames))

    def feed_end(self) -> bytes:
        rest = self._buffer.rest
        return self.feed(b"\n\n") if rest else b""

    def error_at_end(self) -> bytes | None:
        return unfinished_error(self._buffer.rest)

    def end_without_marker(self) -> bool:
        self.ended = self._recorder.end_without_marker()
        return self.ended

    def final_frames(self, *, include_usage: bool) -> bytes:
        return self._recorder.final_frames(include_usage=include_usage)

    def recorded_response(self, request: Any) -> Any:
        return self._recorder.recorded_response(request)

    def _rewrite_all(self, frames: bytes) -> list[bytes]:
        rewritten = []
        for frame in split_events(frames):
            if (reported := error_payload(frame)) is not None:
                self.failure = reported
                break
            data = payload(frame)
            if not data:
                if self.started and is_comment(frame):
                    rewritten.append(frame)
                continue
            new = self._rewrite(data)
            if self.failure is not None:
                break
            if new is not None:
                rewritten.append(new)
            if self.ended:
                break
        return rewritten

    def _pass_on(self, rewritten: list[bytes]) -> bytes:
        if not (self.started or self.ended):
            self._held += rewritten
            return b""
        if not self._joined:
            self._joined = True
            self._join()
            rewritten = [*self._held, *rewritten]
        return self._recorder.feed(b"".join(rewritten)) if rewritten else b""


class SecondChoiceStream(SecondStream):
    """Of a chat or a completion."""

    @abstractmethod
    def _rewrite_choice(self, event: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any] | None:
        """The event for the client; None for one that is left out. Sets `started` at the first token, and `failure`.

        `choice`: the one of the event.
        """

    @abstractmethod
    def _with_head(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with what the events of one stream have in common."""

    def _rewrite(self, data: bytes) -> bytes | None:
        if data == b"[DONE]":
            self.ended = True
            return DONE
        try:
            try:
                event = _decode_event(data)
            except msgspec.DecodeError:  # half a pair of surrogates and NaN are passed on, which msgspec cannot do
                event = json.loads(data)
                new = self._checked(event, data)
                return b"data: %b\n\n" % json.dumps(new).encode() if new is not None else None
        except (ValueError, RecursionError):  # all that decoders raise
            self.failure = b"an event was not JSON"
            return None
        new = self._checked(event, data)
        return b"data: %b\n\n" % _encode(new) if new is not None else None

    def _checked(self, event: Any, data: bytes) -> dict[str, Any] | None:
        if not isinstance(event, dict):
            self.failure = b"an event was not JSON"
            return None
        if is_error_object(event):
            self.failure = data
            return None
        match event.get("choices"):
            case [] | None:
                return self._with_head(event) if event.get("usage") is not None else None
            case [{"index": 0} as choice]:
                return self._rewrite_choice(event, choice)
            case _:
                self.failure = b"an event has not one choice"
                return None
