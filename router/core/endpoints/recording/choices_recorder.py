"""Records the responses of chats and completions: lists of choices, in streams that end with `[DONE]`."""

from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import is_error_body
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.choices import ChoicesFormat, choice_count
from router.core.endpoints.recording.frames import extract_text, finish_reasons, join_events, parse_frames
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.recorded_response import (
    NotStoredReason,
    RecordedResponse,
    ResponseChoice,
    decode_chat_event,
    decode_chat_response,
)
from router.core.endpoints.recording.recording import ABORTED, StreamRecorder, record_json, record_stream
from router.core.endpoints.recording.sse import DONE, error_payload, is_comment, lacks_data, payload, split_events
from router.core.endpoints.recording.usage import estimate_usage, parse_usage
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.core.endpoints.requests.request_metrics import parse_speculation, without_metrics, without_metrics_event

_encode = msgspec.json.Encoder().encode

# Finish reasons with which vLLM cuts a choice off.
_ABNORMAL_FINISH_REASONS: Final = ("abort", "error")

_EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})


# An event of a started stream is read only if it contains one of these. Inside of a JSON string, the quotes of a name
# are escaped, so generated text matches only `[DONE]` and `error`; then the event is read, and forwarded unchanged.
_NON_TEXT_MARKERS: Final = (b'"usage"', b"error", b"[DONE]", b'"abort"')
"""`error` without quotes: it may also be the event's name, or a field beside the data."""


def _is_only_text(frames: bytes) -> bool:
    # `find`, not `in`: for bytes, `in` first tries its operand as an integer, and raises and discards a TypeError.
    find = frames.find
    return find(b'"usage"') < 0 and find(b'"error"') < 0 and find(b"[DONE]") < 0 and find(b'"abort"') < 0


def _first_marker(frames: bytes, begin: int) -> int:
    """Where the first event that must be read has its marker; the events that end before are only text."""
    return min((at for marker in _NON_TEXT_MARKERS if (at := frames.find(marker, begin)) >= 0), default=len(frames))


class ChoicesRecorder(StreamRecorder):
    """Records the stream of a chat or of completions. An event that has only a role is no token."""

    def __init__(self, choices_format: ChoicesFormat, limit: int, shapes: AnswerShapes | None = None) -> None:
        """`limit`: see StreamRecorder. With `shapes`, most streams get a JSON form without decoding their events."""
        super().__init__(limit)
        self._choices_format = choices_format
        self._shapes = shapes
        self._usage_json: bytes | None = None
        self._usage_frame: bytes | None = None
        self._stored_usage_frame: bytes | None = None  # without the metrics of this request

    def _is_only_text(self, frames: bytes) -> bool:
        return _is_only_text(frames)

    def _filter_events(self, frames: bytes) -> list[bytes]:
        forwarded: list[bytes] = []
        end = 0  # of the event in `frames`
        # Most events of a chunk are text, and one search finds the first one that is not.
        text_end = _first_marker(frames, 0) if self.started else 0
        for frame in split_events(frames):
            end += len(frame)
            was_started = self.started
            is_text = was_started and (end <= text_end or (_is_only_text(frame) and error_payload(frame) is None))
            if is_text and not lacks_data(frame):
                forwarded.append(frame)
                continue
            data = payload(frame)
            if (reported := error_payload(frame)) is not None:
                self.failure = reported
            elif not data:
                if is_comment(frame):
                    forwarded.append(frame)
            elif data == b"[DONE]":
                self.ended = True
            elif self._is_forwarded(frame, data):
                forwarded.append(frame)
            if self.ended or self.failure is not None:
                break
            if self.started and not was_started:
                text_end = _first_marker(frames, end)
        return forwarded

    def _is_forwarded(self, frame: bytes, data: bytes) -> bool:
        try:
            event = decode_repaired(decode_chat_event, data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.failure = data if is_error_body(data) else b"an event was not JSON"
            return False
        # vLLM up to 0.9 and SGLang name the object `error`; then there is neither `error` nor a choice.
        if event.error is not None or (not event.choices and event.usage is None and is_error_body(data)):
            self.failure = data
            return False
        for choice in event.choices or ():
            if choice.finish_reason == "abort":
                self.failure = ABORTED
                return False
        if event.usage is not None:
            self.usage = parse_usage(event.usage) or self.usage
            if not event.choices:  # usage beside choices is part of the response, and is forwarded
                self._usage_frame = self._stored_usage_frame = frame
                if event.metrics and (speculation := parse_speculation(event.metrics)) is not None:
                    self.speculation = speculation
                    self._stored_usage_frame = without_metrics_event(frame, event.metrics)
                self._usage_json = _encode(event.usage)
                return False
        self.started = self.started or _has_content(event.choices or [])
        return True

    @property
    def has_usage_event(self) -> bool:
        return self._usage_frame is not None

    def end_without_marker(self) -> bool:
        """Complete if each choice has its finish reason. Of a response that is too large, no events are left."""
        if not self._event_buffer.pending:
            try:
                reasons = finish_reasons(parse_frames(self._parts.merged_events(self._choices_format.may_merge)))
            except MALFORMED_RESPONSE_ERRORS:
                return False
            self.ended = bool(reasons) and all(reasons.values())
        return self.ended

    def final_frames(self, *, include_usage: bool) -> bytes:
        return (self._usage_frame or b"") + DONE if include_usage else DONE

    def _record_complete(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason:
        choices_format, parts = self._choices_format, self._parts
        expected = choice_count(request.fields, takes_prompt_list=choices_format.takes_prompt_list)
        if self._shapes is not None:
            filled = self._shapes.fill(choices_format, parts, self._stored_usage_frame, self._usage_json)
            if filled is not None:
                body, ended = filled
                bad = _not_stored_reason(expected, ended, has_content=self.started)
                return bad or record_stream(parts, body, self._stored_usage_frame, self.usage, self._limit)
        events = parts.merged_events(choices_format.may_merge)
        try:
            parsed = parse_frames(events)
            reasons = finish_reasons(parsed)
        except MALFORMED_RESPONSE_ERRORS:
            return NotStoredReason.ERROR  # not JSON, or JSON of another form than events have
        bad = _not_stored_reason(expected, list(reasons.values()), has_content=self.started)
        if bad is not None:
            return bad
        joined = join_events(choices_format, parsed, self._stored_usage_frame)
        if joined is None:
            # No JSON body says the same. The entry then serves streams only; its body is the text, for people.
            return record_stream(
                parts, extract_text(events), self._stored_usage_frame, self.usage, self._limit, lossless=False
            )
        return record_stream(parts, joined, self._stored_usage_frame, self.usage, self._limit)


def record_choices(
    choices_format: ChoicesFormat, request: InferenceRequest, body: bytes, limit: int
) -> RecordedResponse | NotStoredReason:
    try:
        response = decode_chat_response(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NotStoredReason.ERROR
    if response.error is not None:
        return NotStoredReason.ERROR
    reasons = [choice.finish_reason for choice in response.choices]
    expected = choice_count(request.fields, takes_prompt_list=choices_format.takes_prompt_list)
    bad = _not_stored_reason(expected, reasons, has_content=_has_content(response.choices))
    if bad is not None:
        return bad
    speculation = parse_speculation(response.metrics) if response.metrics else None
    if speculation is not None:
        body = without_metrics(body, response.metrics)
    usage = parse_usage(response.usage)
    if usage is None:
        usage = estimate_usage(len(request.body), len(extract_text([b"data: %b\n\n" % body])))
    return record_json(body, usage, limit, speculation)


def _not_stored_reason(expected_choices: int, reasons: list[Any], *, has_content: bool) -> NotStoredReason | None:
    """`reasons`: the finish reason of each choice, or what an engine sent in its place."""
    if len(reasons) < expected_choices:
        return NotStoredReason.INCOMPLETE
    for reason in reasons:
        if not reason or reason in _ABNORMAL_FINISH_REASONS:
            return NotStoredReason.INCOMPLETE
    return None if has_content else NotStoredReason.EMPTY


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
