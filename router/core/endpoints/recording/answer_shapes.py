"""Makes the JSON answer of a stream without decoding its events, if an earlier stream differed only in a few values.

Theory. The streams of an engine differ in their id, their creation time, the usage and the text; all other bytes are
equal. So take the JSON answer of one stream, with a hole in place of each of these values (its shape). With the holes
filled, it is the answer of another stream. Shapes are kept by skeleton: the bytes of the stream without these values.
If anything else differs, the skeleton differs. A shape in which a hole is missing or occurs twice is not used.
"""

import re
from typing import Any, Final

import msgspec

from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun
from router.core.endpoints.recording.frames import finish_reasons, join_events, parse_frames
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

MAX_SHAPES: Final = 256
MAX_SKELETON_SIZE: Final = 8192
"""Bytes. The events of a stream with a larger skeleton are decoded."""

_ID: Final = re.compile(rb'"id":"([^"\\\x00-\x1f]{8,128})"')
_CREATED: Final = re.compile(rb'"created":([1-9]\d{5,14}),')

# In a skeleton: what replaces the values, and what separates events. JSON never contains a byte 0.
_ID_PLACEHOLDER: Final = b"\x00i"
_CREATED_PLACEHOLDER: Final = b"\x00c"
_TEXT_PLACEHOLDER: Final = b"\x00t"
_LAST_TEXT_PLACEHOLDER: Final = b"\x00l"
_USAGE_PLACEHOLDER: Final = b"\x00u"
_EVENT_SEPARATOR: Final = b"\x00n"

# In the events that are decoded to build a shape: valid JSON in place of each placeholder. A skeleton that contains one
# of these has no shape.
_ID_SENTINEL: Final = b"id-7d1c4be2f0a94c57"
_CREATED_SENTINEL: Final = b"871263549017263549"
_TEXT_SENTINEL: Final = b"text-5b0e9d3c7fa2468e"
_LAST_TEXT_SENTINEL: Final = b"last-e8a1f05b9c3d7264"
_USAGE_SENTINEL: Final = b"562738491827364556"
_ANY_SENTINEL: Final = re.compile(
    b"|".join((_ID_SENTINEL, _CREATED_SENTINEL, _TEXT_SENTINEL, _LAST_TEXT_SENTINEL, _USAGE_SENTINEL))
)

_decode_string = msgspec.json.Decoder(str).decode


class AnswerShape:
    """A JSON answer, split at its holes.

    - `pieces`: the bytes between the holes, one more than there are holes.
    - `sentinels`: which value belongs in each hole, in their order.
    - `finish_reasons`: of each choice.
    """

    def __init__(self, finish_reasons: list[Any], pieces: list[bytes], sentinels: list[bytes]) -> None:
        self.finish_reasons = finish_reasons
        self.pieces = pieces
        self.sentinels = sentinels


class AnswerShapes:
    """The shapes of the streams of this process: at most MAX_SHAPES, the oldest is evicted first."""

    def __init__(self) -> None:
        # By format and skeleton; None where a skeleton has no shape, so that this is not computed again.
        self._shapes: dict[tuple[ChoicesFormat, bytes], AnswerShape | None] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def usable_count(self) -> int:
        return sum([shape is not None for shape in self._shapes.values()])

    def fill(
        self, choices_format: ChoicesFormat, parts: StreamParts, usage_frame: bytes | None, usage: bytes | None
    ) -> tuple[bytes, list[Any]] | None:
        """The JSON answer and the finish reasons of a stream of chats or completions; None if it must be decoded.

        `usage`: the usage as compact JSON. If the usage event does not contain these bytes, it must be decoded.
        """
        events: list[bytes] = []
        found = _merged_texts(parts, events)
        if found is None:
            return None
        texts, last, holes = found
        if usage_frame is not None:
            if usage is None or not usage.startswith(b'{"'):
                return None
            at = usage_frame.find(b'"usage":' + usage) + 8  # 8: the length of `"usage":`; below 8: not found
            if at < 8:
                return None
            events.append(usage_frame[:at] + _USAGE_PLACEHOLDER + usage_frame[at + len(usage) :])
            holes += 1
        skeleton = _EVENT_SEPARATOR.join(events)
        # A byte 0 that is neither of a placeholder nor of a separator comes from the engine, and is no JSON.
        if len(skeleton) > MAX_SKELETON_SIZE or skeleton.count(b"\x00") != len(events) - 1 + holes:
            return None
        id_, created = _ID.search(skeleton), _CREATED.search(skeleton)
        if id_ is None:
            return None
        # Replace the field together with its name: the value alone may be part of another value.
        skeleton = skeleton.replace(id_[0], b'"id":"%b"' % _ID_PLACEHOLDER)
        if created is not None:
            skeleton = skeleton.replace(created[0], b'"created":%b,' % _CREATED_PLACEHOLDER)
        shape = self._shape_of(choices_format, skeleton)
        text = b"".join(texts)
        # No decoder has checked these values in this stream. `created` has only digits; `usage` is encoded by us.
        if shape is None or not all(map(_is_string_content, (text, last, id_[1]))):
            return None
        values = {
            _ID_SENTINEL: id_[1], _CREATED_SENTINEL: created[1] if created is not None else b"", _TEXT_SENTINEL: text,
            _LAST_TEXT_SENTINEL: last, _USAGE_SENTINEL: usage or b"",
        }  # fmt: skip
        body = [shape.pieces[0]]
        for sentinel, piece in zip(shape.sentinels, shape.pieces[1:], strict=True):
            body += (values[sentinel], piece)
        return b"".join(body), shape.finish_reasons

    def _shape_of(self, choices_format: ChoicesFormat, skeleton: bytes) -> AnswerShape | None:
        key = (choices_format, skeleton)
        if key in self._shapes:
            return self._shapes[key]
        shape = _build_shape(choices_format, skeleton)
        if len(self._shapes) >= MAX_SHAPES:
            del self._shapes[next(iter(self._shapes))]
        self._shapes[key] = shape
        return shape


def _merged_texts(parts: StreamParts, events: list[bytes]) -> tuple[list[bytes], bytes, int] | None:
    """Appends the events to `events`, the run of texts as one. None if there is not one run.

    Returns the texts of the run, the text of the event that ends it, and the number of placeholders.
    """
    run = None
    begin = last = b""
    holes = 0
    for part in parts.parts:
        if isinstance(part, TemplateRun):
            if not part.texts:
                continue
            template = parts.templates[part.template_index]
            if run is not None or template.is_numbered:
                return None  # several runs, as of several choices, have no shape
            run, begin = part, template.begin
            events.append(begin + _TEXT_PLACEHOLDER + template.end)
            holes += 1
        elif begin and not last and part.startswith(begin):
            # The last text comes in the event that has the finish reason, which makes no template.
            last = part[len(begin) : part.find(b'"', len(begin))]
            events.append(begin + _LAST_TEXT_PLACEHOLDER + part[len(begin) + len(last) :])
            holes += 1
        else:
            events.append(part)
    return (run.texts, last, holes) if run is not None else None


def _build_shape(choices_format: ChoicesFormat, skeleton: bytes) -> AnswerShape | None:
    if _ANY_SENTINEL.search(skeleton) is not None:
        return None
    filled = skeleton.replace(_ID_PLACEHOLDER, _ID_SENTINEL).replace(_CREATED_PLACEHOLDER, _CREATED_SENTINEL)
    events = filled.split(_EVENT_SEPARATOR)
    usage_frame = (
        events.pop().replace(_USAGE_PLACEHOLDER, _USAGE_SENTINEL) if _USAGE_PLACEHOLDER in events[-1] else None
    )
    run_event = next((event for event in events if _TEXT_PLACEHOLDER in event), b"")
    begin, _, end = run_event.partition(_TEXT_PLACEHOLDER)
    if not choices_format.may_merge(begin, end):  # `fill` puts the joined text of the run into one hole
        return None
    frames = [
        event.replace(_TEXT_PLACEHOLDER, _TEXT_SENTINEL).replace(_LAST_TEXT_PLACEHOLDER, _LAST_TEXT_SENTINEL)
        for event in events
    ]
    try:
        parsed = parse_frames(frames)
        reasons = list(finish_reasons(parsed).values())
        body = join_events(choices_format, parsed, usage_frame)
    except MALFORMED_RESPONSE_ERRORS:
        return None
    expected = [_ID_SENTINEL, _TEXT_SENTINEL]
    expected += [_CREATED_SENTINEL] if _CREATED_PLACEHOLDER in skeleton else []
    expected += [_LAST_TEXT_SENTINEL] if _LAST_TEXT_PLACEHOLDER in skeleton else []
    expected += [_USAGE_SENTINEL] if usage_frame is not None else []
    # Each value must occur exactly once: one that is missing or repeated may depend on the value in another way.
    if body is None or sorted(sentinels := _ANY_SENTINEL.findall(body)) != sorted(expected):
        return None
    return AnswerShape(reasons, _ANY_SENTINEL.split(body), sentinels)


def _is_string_content(text: bytes) -> bool:
    try:
        _decode_string(b'"%b"' % text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
