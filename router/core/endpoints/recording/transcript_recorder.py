"""The stream of a transcript. Nothing of it is stored, so only its beginning, its end and its errors are read.

vLLM sends events like those of chats (`transcription.chunk`, with a finish reason after each thirty seconds of audio)
and `[DONE]`. OpenAI sends `transcript.text.delta` and, at the end, `transcript.text.done`.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import is_error_body, unfinished_error
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.recorded_response import RecordedResponse, ReportedUsage, RequestSpeculation
from router.core.endpoints.recording.recording import EVENT_TOO_LONG, MAX_EVENT_SIZE
from router.core.endpoints.recording.sse import DONE, EventBuffer, error_payload, is_comment, payload, split_events
from router.core.endpoints.recording.usage import estimate_usage, parse_usage


class _Choice(msgspec.Struct):
    delta: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_LAST_EVENT: Final = "transcript.text.done"


class TranscriptRecorder:
    """See endpoint.Recorder. All events are forwarded unchanged, the usage too: it comes only if the client asks."""

    def __init__(self) -> None:
        self.started = False
        self.ended = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None
        self.speculation: RequestSpeculation | None = None
        self._buffer = EventBuffer()
        self._has_last_event = False
        self._has_done = False
        self._text_size = 0

    def feed(self, data: bytes) -> bytes:
        if self.ended or self.failure is not None:
            return b""
        frames = self._buffer.feed(data)
        if self._buffer.pending > MAX_EVENT_SIZE:
            self.failure = EVENT_TOO_LONG
        forwarded = []
        for frame in split_events(frames):
            if (reported := error_payload(frame)) is not None:
                self.failure = reported
                break
            event_data = payload(frame)
            if not event_data and not is_comment(frame):
                continue
            self._read(event_data)
            if self.ended or self.failure is not None:
                break
            forwarded.append(frame)
        return b"".join(forwarded)

    def feed_end(self) -> bytes:
        return self.feed(b"\n\n") if self._buffer.rest.startswith(b"data: [DONE]") else b""

    def error_at_end(self) -> bytes | None:
        return unfinished_error(self._buffer.rest)

    def end_without_marker(self) -> bool:
        self.ended = self.ended or self._has_last_event
        return self.ended

    def final_frames(self, *, include_usage: bool) -> bytes:
        return DONE if self._has_done else b""

    @property
    def is_complete(self) -> bool:
        return self.ended and self.failure is None

    def recorded_response(self, request: InferenceRequest) -> RecordedResponse:
        """The token counts alone: a response to an upload is never stored."""
        usage = self.usage or estimate_usage(request.prompt_size, self._text_size)
        return RecordedResponse(
            body=b"", stream=None, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        )

    def _read(self, data: bytes | None) -> None:
        if not data:
            return
        if data == b"[DONE]":
            self.ended = self._has_done = True
            return
        try:
            event = decode_repaired(_decode_event, data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = data if is_error_body(data) else b"an event was not JSON"
            return
        if event.error is not None or "error" in (event.type, event.object):
            self.failure = data
            return
        self.usage = parse_usage(event.usage) or self.usage
        self._has_last_event = self._has_last_event or event.type == _LAST_EVENT
        texts = [event.delta, *(c.delta.get("content") for c in event.choices or () if isinstance(c.delta, dict))]
        size = sum(len(text) for text in texts if isinstance(text, str))
        self._text_size += size
        # A file without speech has an event without text.
        self.started = self.started or size > 0 or self._has_last_event
