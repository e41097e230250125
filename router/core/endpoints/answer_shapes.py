"""The JSON answer of a stream without reading its events, where another stream was the same but for a few values.

Theory. Streams of one engine differ in their id, the time of their creation, the usage and the text; all else is equal
to the byte. So the JSON answer of one, with holes for these, is the answer of the others once the holes are
filled. What a stream is beside them (its skeleton) is the key under which the answer with holes is kept: so
whatever else differs makes another key. An answer in which a hole is missing or comes twice is not used.
"""

import re
from typing import Any, Final

import msgspec

from router.core.endpoints.delta_merge import may_merge
from router.core.endpoints.delta_template import StreamParts, TemplateRun
from router.core.endpoints.frames import EVENT_PARSE_ERRORS, finish_reasons, join_events, parse_frames
from router.core.types import Endpoint

MAX_SHAPES: Final = 256
MAX_SKELETON_SIZE: Final = 8192
"""Bytes. Streams with more beside their text are read."""

_ID: Final = re.compile(rb'"id":"([^"\\\x00-\x1f]{8,128})"')
_CREATED: Final = re.compile(rb'"created":([1-9]\d{5,14}),')

# What stands in a skeleton for what is left out, and between events. JSON has no byte 0.
_ID_PLACEHOLDER: Final = b"\x00i"
_CREATED_PLACEHOLDER: Final = b"\x00c"
_TEXT_PLACEHOLDER: Final = b"\x00t"
_LAST_TEXT_PLACEHOLDER: Final = b"\x00l"
_USAGE_PLACEHOLDER: Final = b"\x00u"
_EVENT_SEPARATOR: Final = b"\x00n"

# What stands for them in the events that are read for a shape: JSON that no engine says.
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
    """The JSON answer cut at its holes, the mark of each hole, and how each choice ended."""

    __slots__ = ("finish_reasons", "pieces", "sentinels")

    def __init__(self, finish_reasons: list[Any], pieces: list[bytes], sentinels: list[bytes]) -> None:
        self.finish_reasons = finish_reasons
        self.pieces = pieces
        self.sentinels = sentinels


class AnswerShapes:
    """The shapes of the streams of this process: no more than MAX_SHAPES, the oldest goes first."""

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, bytes], AnswerShape | None] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def usable_count(self) -> int:
        """How many of them give answers."""
        return sum([shape is not None for shape in self._shapes.values()])

    def fill(
        self, endpoint: Endpoint, parts: StreamParts, usage_frame: bytes | None, usage: bytes | None
    ) -> tuple[bytes, list[Any]] | None:
        """The JSON answer and the finish reasons of a stream of chats or completions; None where it must be read.

        `usage`: what the usage event says, as JSON; where the event does not end with it, it must be read.
        """
        run = None
        begin = last = b""
        holes = 0
        around: list[bytes] = []
        for part in parts.parts:
            if isinstance(part, TemplateRun):
                if not part.texts:
                    continue
                template = parts.templates[part.template_index]
                if run is not None or template.is_numbered:
                    return None
                run, begin = part, template.begin
                around.append(begin + _TEXT_PLACEHOLDER + template.end)
                holes += 1
            elif begin and not last and part.startswith(begin):
                # The last text comes together with the finish reason.
                last = part[len(begin) : part.find(b'"', len(begin))]
                around.append(begin + _LAST_TEXT_PLACEHOLDER + part[len(begin) + len(last) :])
                holes += 1
            else:
                around.append(part)
        if usage_frame is not None:
            if usage is None or not usage.startswith(b'{"'):
                return None
            at = usage_frame.find(b'"usage":' + usage) + 8
            if at < 8:
                return None
            around.append(usage_frame[:at] + _USAGE_PLACEHOLDER + usage_frame[at + len(usage) :])
            holes += 1
        skeleton = _EVENT_SEPARATOR.join(around)
        if run is None or len(skeleton) > MAX_SKELETON_SIZE or skeleton.count(b"\x00") != len(around) - 1 + holes:
            return None
        id_, created = _ID.search(skeleton), _CREATED.search(skeleton)
        if id_ is None:
            return None
        # Only the whole field: the same bytes may be part of another value.
        skeleton = skeleton.replace(id_[0], b'"id":"%b"' % _ID_PLACEHOLDER)
        if created is not None:
            skeleton = skeleton.replace(created[0], b'"created":%b,' % _CREATED_PLACEHOLDER)
        key = (endpoint.path, skeleton)
        if key in self._shapes:
            shape = self._shapes[key]
        else:
            shape = _build_shape(endpoint, skeleton)
            if len(self._shapes) >= MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            self._shapes[key] = shape
        text = b"".join(run.texts)
        if shape is None or not all(map(_is_string_content, (text, last, id_[1]))):
            return None
        values = {
            _ID_SENTINEL: id_[1], _CREATED_SENTINEL: created[1] if created is not None else b"", _TEXT_SENTINEL: text,
            _LAST_TEXT_SENTINEL: last, _USAGE_SENTINEL: usage or b"",
        }  # fmt: skip
        body = [shape.pieces[0]]
        for mark, piece in zip(shape.sentinels, shape.pieces[1:], strict=True):
            body += (values[mark], piece)
        return b"".join(body), shape.finish_reasons


def _build_shape(endpoint: Endpoint, skeleton: bytes) -> AnswerShape | None:
    """The shape of all streams with this skeleton; None where they have none."""
    if _ANY_SENTINEL.search(skeleton) is not None:
        return None
    marked = skeleton.replace(_ID_PLACEHOLDER, _ID_SENTINEL).replace(_CREATED_PLACEHOLDER, _CREATED_SENTINEL)
    events = marked.split(_EVENT_SEPARATOR)
    usage_frame = (
        events.pop().replace(_USAGE_PLACEHOLDER, _USAGE_SENTINEL) if _USAGE_PLACEHOLDER in events[-1] else None
    )
    around = next((event for event in events if _TEXT_PLACEHOLDER in event), b"")
    begin, _, end = around.partition(_TEXT_PLACEHOLDER)
    if not may_merge(endpoint, begin, end):
        return None
    frames = [
        event.replace(_TEXT_PLACEHOLDER, _TEXT_SENTINEL).replace(_LAST_TEXT_PLACEHOLDER, _LAST_TEXT_SENTINEL)
        for event in events
    ]
    try:
        parsed = parse_frames(frames)
        reasons = list(finish_reasons(parsed).values())
        body = join_events(endpoint, parsed, usage_frame)
    except EVENT_PARSE_ERRORS:
        return None
    expected = [_ID_SENTINEL, _TEXT_SENTINEL]
    expected += [_CREATED_SENTINEL] if _CREATED_PLACEHOLDER in skeleton else []
    expected += [_LAST_TEXT_SENTINEL] if _LAST_TEXT_PLACEHOLDER in skeleton else []
    expected += [_USAGE_SENTINEL] if usage_frame is not None else []
    if body is None or sorted(marks := _ANY_SENTINEL.findall(body)) != sorted(expected):
        return None
    return AnswerShape(reasons, _ANY_SENTINEL.split(body), marks)


def _is_string_content(text: bytes) -> bool:
    try:
        _decode_string(b'"%b"' % text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
