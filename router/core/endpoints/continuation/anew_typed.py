"""A stream of typed events that begins anew at another engine, since its engine broke off in the reasoning.

Nothing of the answer has been said, so the second engine gets the client's request unchanged. Its events are rewritten
so that they go on with the client's stream: see AnewMessages and AnewResponses. They go through the recorder of the
first engine's stream, once the second engine has sent its first token; until then, another engine can still take over.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from router.core.endpoints.continuation.event_forms import MAX_LITERAL_EVENTS, literal_count
from router.core.endpoints.continuation.second_stream import SecondStream
from router.core.endpoints.errors.engine_errors import is_error_body
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.recording.typed_events import EventReader, TypedRecorder, encode_event
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

Json = dict[str, Any]

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


class EventRewriter(Protocol):
    def rewrite(self, event: Json) -> list[Json]:
        """The events for the client in place of one of the second engine. Raises MALFORMED_RESPONSE_ERRORS."""


def published_events(recorder: TypedRecorder, answer_markers: Mapping[bytes, str]) -> list[Json] | str:
    """The events that the client has, each run of deltas as one; or why it cannot begin anew, in a word.

    `answer_markers`: that word for events of the answer, by what their bytes contain. A long answer is not read.
    """
    parts = recorder.parts
    if parts is None:
        return "too-large"
    for template in parts.templates:
        form = template.begin_with(0) + template.end_with(0)
        for marker, obstacle in answer_markers.items():
            if form.find(marker) >= 0:
                return obstacle
    if literal_count(parts) > MAX_LITERAL_EVENTS:
        return "no-template"
    try:
        payloads = [payload(frame) for frame in parts.merged_events(lambda _begin, _end: True)]
        return [decode_repaired(_decode_event, data) for data in payloads if data]
    except MALFORMED_RESPONSE_ERRORS:
        return "malformed"


class AnewRecorder(SecondStream):
    """A Recorder of the second engine's stream, which passes it on to the recorder of the first one's."""

    def __init__(self, recorder: TypedRecorder, reader: EventReader, rewriter: EventRewriter) -> None:
        """`reader`: a new one, of the second engine's events."""
        super().__init__(recorder)
        self._reader = reader
        self._rewriter = rewriter

    def _join(self) -> None:
        self._recorder.resume()

    def _rewrite(self, data: bytes) -> bytes | None:
        if data == b"[DONE]":  # some engines add it; clients of these endpoints do not know it
            return None
        try:
            is_last = decode_repaired(self._reader.on_event, data)
            self.started, self.failure = self._reader.started, self._reader.failure
            if self.failure is not None:
                return None
            events = self._rewriter.rewrite(decode_repaired(_decode_event, data))
            self.ended = is_last  # not before: a failure of the rewriter is one of the stream
            return b"".join(map(encode_event, events)) or None
        except MALFORMED_RESPONSE_ERRORS:
            self.failure = data if is_error_body(data) else b"an event was not JSON"
            return None
