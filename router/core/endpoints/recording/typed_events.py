"""Streams of typed events: `event:` lines, a `type` in each payload, and a final event instead of `[DONE]`.

/v1/responses and /v1/messages stream like this. Their final event (`response.completed`, `message_stop`) is withheld as
`[DONE]` is: it is sent only after the response is passed to the store, so a client that has received the end finds the
entry. Unlike `[DONE]`, the final event is part of the response, so it is stored with it.
"""

from typing import Any, Final, Protocol

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import is_error_body
from router.core.endpoints.recording.frames import extract_text
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse, ReportedUsage
from router.core.endpoints.recording.recording import StreamRecorder, record_stream
from router.core.endpoints.recording.sse import error_payload, is_comment, is_data_event, payload, split_events
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})

_encode = msgspec.json.Encoder().encode


def encode_event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


def is_nonempty(value: Any) -> bool:
    return value not in _EMPTY_VALUES


class EventReader(Protocol):
    """Reads the events of one stream of an endpoint, in their order.

    - `non_text_markers`: each event that must be decoded although the stream has started contains one of these.
    - `started`, `failure`, `usage`: see endpoint.Recorder.
    """

    non_text_markers: tuple[bytes, ...]
    started: bool
    failure: bytes | None
    usage: ReportedUsage | None

    def on_event(self, data: bytes) -> bool:
        """Handles the payload of an event; returns whether it is the final one. Raises MALFORMED_RESPONSE_ERRORS."""

    def may_merge(self, begin: bytes, end: bytes) -> bool:
        """Whether events with these bytes before and after their text may be merged; see delta_merge."""

    def build_body(self, payloads: list[bytes]) -> bytes | NotStoredReason | None:
        """The JSON body, or why nothing is stored; None if no JSON has all the information of the events.

        `payloads`: those of all events, with each run of events that may be merged as one. It is called after the final
        event. Raises MALFORMED_RESPONSE_ERRORS.
        """


class TypedRecorder(StreamRecorder):
    """Records a stream of typed events, which `reader` reads."""

    def __init__(self, reader: EventReader, limit: int) -> None:
        super().__init__(limit)
        self._reader = reader
        self._markers = reader.non_text_markers
        self._final_frame = b""

    def resume(self) -> None:
        super().resume()
        self._reader.failure = None

    def _is_only_text(self, frames: bytes) -> bool:
        # `find`, not `in`: for bytes, `in` first tries its operand as an integer.
        return all(frames.find(marker) < 0 for marker in self._markers)

    def _append(self, events: list[bytes]) -> None:
        self._parts.append_events(events)
        if self.ended:
            self._parts.append(self._final_frame)

    def _filter_events(self, frames: bytes) -> list[bytes]:
        reader = self._reader
        forwarded = []
        for frame in split_events(frames):
            if self.started and is_data_event(frame) and self._is_only_text(frame):
                forwarded.append(frame)
                continue
            if (reported := error_payload(frame)) is not None:
                self.failure = reported
                break
            data = payload(frame)
            if data == b"[DONE]":  # some engines add it; clients of these endpoints do not know it
                continue
            if not data:
                if not is_comment(frame):
                    continue
            else:
                try:
                    self.ended = decode_repaired(reader.on_event, data)
                except MALFORMED_RESPONSE_ERRORS:
                    self.failure = data if is_error_body(data) else b"an event was not JSON"
                    break
                self.started, self.failure, self.usage = reader.started, reader.failure, reader.usage
                if self.failure is not None:
                    break
                if self.ended:
                    self._final_frame = frame
                    break
            forwarded.append(frame)
        return forwarded

    def final_frames(self, *, include_usage: bool) -> bytes:
        return self._final_frame

    def _record_complete(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason:
        parts = self._parts
        events = parts.merged_events(self._reader.may_merge)
        try:
            body = self._reader.build_body([data for frame in events if (data := payload(frame)) is not None])
        except MALFORMED_RESPONSE_ERRORS:
            return NotStoredReason.ERROR
        if isinstance(body, NotStoredReason):
            return body
        if body is None:
            return record_stream(parts, extract_text(events), None, self.usage, self._limit, lossless=False)
        return record_stream(parts, body, None, self.usage, self._limit)
