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
from router.core.endpoints.delta_template import Run, StreamParts
from router.core.endpoints.frames import NOT_EVENTS, body_of_events, events_of_frames, finish_reasons
from router.core.types import Endpoint

MAX_SHAPES: Final = 256
MAX_SKELETON: Final = 8192
"""Bytes. Streams with more beside their text are read."""

_ID: Final = re.compile(rb'"id":"([^"\\\x00-\x1f]{8,128})"')
_CREATED: Final = re.compile(rb'"created":([1-9]\d{5,14}),')

# What stands in a skeleton for what is left out, and between events. JSON has no byte 0.
_ID_HOLE: Final = b"\x00i"
_CREATED_HOLE: Final = b"\x00c"
_TEXT_HOLE: Final = b"\x00t"
_LAST_HOLE: Final = b"\x00l"
_USAGE_HOLE: Final = b"\x00u"
_NEXT: Final = b"\x00n"

# What stands for them in the events that are read for a shape: JSON that no engine says.
_ID_MARK: Final = b"id-7d1c4be2f0a94c57"
_CREATED_MARK: Final = b"871263549017263549"
_TEXT_MARK: Final = b"text-5b0e9d3c7fa2468e"
_LAST_MARK: Final = b"last-e8a1f05b9c3d7264"
_USAGE_MARK: Final = b"562738491827364556"
_MARKS: Final = re.compile(b"|".join((_ID_MARK, _CREATED_MARK, _TEXT_MARK, _LAST_MARK, _USAGE_MARK)))

_read_text = msgspec.json.Decoder(str).decode


class Shape:
    """The JSON answer cut at its holes, the mark of each hole, and how each choice ended."""

    __slots__ = ("marks", "pieces", "reasons")

    def __init__(self, reasons: list[Any], pieces: list[bytes], marks: list[bytes]) -> None:
        self.reasons = reasons
        self.pieces = pieces
        self.marks = marks


class AnswerShapes:
    """The shapes of the streams of this process: no more than MAX_SHAPES, the oldest goes first."""

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, bytes], Shape | None] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def known(self) -> int:
        """How many of them give answers."""
        return sum([shape is not None for shape in self._shapes.values()])

    def answer(
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
            if isinstance(part, Run):
                if not part.texts:
                    continue
                template = parts.templates[part.template]
                if run is not None or template.is_numbered:
                    return None
                run, begin = part, template.begin
                around.append(begin + _TEXT_HOLE + template.end)
                holes += 1
            elif begin and not last and part.startswith(begin):
                # The last text comes together with the finish reason.
                last = part[len(begin) : part.find(b'"', len(begin))]
                around.append(begin + _LAST_HOLE + part[len(begin) + len(last) :])
                holes += 1
            else:
                around.append(part)
        if usage_frame is not None:
            if usage is None or not usage.startswith(b'{"'):
                return None
            at = usage_frame.find(b'"usage":' + usage) + 8
            if at < 8:
                return None
            around.append(usage_frame[:at] + _USAGE_HOLE + usage_frame[at + len(usage) :])
            holes += 1
        skeleton = _NEXT.join(around)
        if run is None or len(skeleton) > MAX_SKELETON or skeleton.count(b"\x00") != len(around) - 1 + holes:
            return None
        id_, created = _ID.search(skeleton), _CREATED.search(skeleton)
        if id_ is None:
            return None
        # Only the whole field: the same bytes may be part of another value.
        skeleton = skeleton.replace(id_[0], b'"id":"%b"' % _ID_HOLE)
        if created is not None:
            skeleton = skeleton.replace(created[0], b'"created":%b,' % _CREATED_HOLE)
        key = (endpoint.path, skeleton)
        if key in self._shapes:
            shape = self._shapes[key]
        else:
            shape = _shape(endpoint, skeleton)
            if len(self._shapes) >= MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            self._shapes[key] = shape
        text = b"".join(run.texts)
        if shape is None or not all(map(_is_inside_of_string, (text, last, id_[1]))):
            return None
        values = {
            _ID_MARK: id_[1], _CREATED_MARK: created[1] if created is not None else b"", _TEXT_MARK: text,
            _LAST_MARK: last, _USAGE_MARK: usage or b"",
        }  # fmt: skip
        body = [shape.pieces[0]]
        for mark, piece in zip(shape.marks, shape.pieces[1:], strict=True):
            body += (values[mark], piece)
        return b"".join(body), shape.reasons


def _shape(endpoint: Endpoint, skeleton: bytes) -> Shape | None:
    """The shape of all streams with this skeleton; None where they have none."""
    if _MARKS.search(skeleton) is not None:
        return None
    marked = skeleton.replace(_ID_HOLE, _ID_MARK).replace(_CREATED_HOLE, _CREATED_MARK)
    events = marked.split(_NEXT)
    usage_frame = events.pop().replace(_USAGE_HOLE, _USAGE_MARK) if _USAGE_HOLE in events[-1] else None
    around = next((event for event in events if _TEXT_HOLE in event), b"")
    begin, _, end = around.partition(_TEXT_HOLE)
    if not may_merge(endpoint, begin, end):
        return None
    frames = [event.replace(_TEXT_HOLE, _TEXT_MARK).replace(_LAST_HOLE, _LAST_MARK) for event in events]
    try:
        parsed = events_of_frames(frames)
        reasons = list(finish_reasons(parsed).values())
        body = body_of_events(endpoint, parsed, usage_frame)
    except NOT_EVENTS:
        return None
    expected = [_ID_MARK, _TEXT_MARK]
    expected += [_CREATED_MARK] if _CREATED_HOLE in skeleton else []
    expected += [_LAST_MARK] if _LAST_HOLE in skeleton else []
    expected += [_USAGE_MARK] if usage_frame is not None else []
    if body is None or sorted(marks := _MARKS.findall(body)) != sorted(expected):
        return None
    return Shape(reasons, _MARKS.split(body), marks)


def _is_inside_of_string(text: bytes) -> bool:
    try:
        _read_text(b'"%b"' % text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
