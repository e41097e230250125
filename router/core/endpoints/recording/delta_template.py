"""Splits a stream into templates and texts: nearly all events of a stream differ only in their text.

Theory. In JSON, a quote inside a string is escaped with a backslash. Take an event with a text. Another event that has
the same bytes before and after its text, and no unescaped quote between them, is the same event with another text. So
what is known of the first event, apart from its text, holds for the second one, which is not decoded. It remains to
check that the bytes between are the content of a JSON string. This is done once, at the end, for all texts together.

Some streams number their events (`sequence_number` of /v1/responses). The number is the only other thing that may
differ; a template computes it.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from router.core.endpoints.recording.json_repair import repaired
from router.core.endpoints.recording.sse import is_comment, split_events
from router.core.endpoints.recording.token_ids import STRING_CONTENT, TokenIdCutter

MAX_TEMPLATES: Final = 8
"""Templates per stream. If events differ in more than their text, templates do not help; this limit ends the try."""

# What precedes the text of an event. It cannot match inside of a string, since its quotes are not escaped.
_TEXT_FIELD: Final = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking|partial_json)": ?"'
)

# An event in which a choice ends makes no template: such events are few, and each tells how the stream ended.
FINISH_REASON: Final = re.compile(rb'"finish_reason":(?! ?null)')

# A number that `%d` writes with the same bytes: no leading zero, no sign, at most 15 digits. Any other spelling is part
# of the template's bytes.
_SEQUENCE_NUMBER: Final = re.compile(rb'"sequence_number": ?(0|[1-9]\d{0,14})(?!\d)')

_QUOTE: Final = ord('"')
_NEWLINE: Final = ord("\n")  # ends a line of an event; JSON has none inside of a string
_BACKSLASH: Final = ord("\\")
_COLON: Final = ord(":")  # begins a comment
_LITERAL_DIVISOR: Final = 8  # an event outside of a run is compressed before it is stored
_MIN_PART_SIZE: Final = 16  # bytes that each part counts at least, so that many small ones reach the limit too

_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Template:
    """The bytes before and after the text of an event.

    - `begin`, `end`: these bytes; where one of them contains the event's number, the bytes before the number.
    - `begin_after`, `end_after`: the bytes after the number, on the side that contains it; else None.
    """

    def __init__(self, begin: bytes, end: bytes) -> None:
        self.begin = begin
        self.begin_after: bytes | None = None
        self.end = end
        self.end_after: bytes | None = None
        number = _SEQUENCE_NUMBER.search(begin)
        if number is not None:
            self.begin, self.begin_after = begin[: number.start(1)], begin[number.end(1) :]
            return
        number = _SEQUENCE_NUMBER.search(end)
        if number is not None:
            self.end, self.end_after = end[: number.start(1)], end[number.end(1) :]

    @property
    def is_numbered(self) -> bool:
        return self.begin_after is not None or self.end_after is not None

    def begin_with(self, number: int) -> bytes:
        return self.begin if self.begin_after is None else b"%b%d%b" % (self.begin, number, self.begin_after)

    def end_with(self, number: int) -> bytes:
        return self.end if self.end_after is None else b"%b%d%b" % (self.end, number, self.end_after)


class TemplateRun:
    """Consecutive events of one template: its index, the sequence number of the first event, and the texts."""

    def __init__(self, template_index: int, first_number: int, texts: list[bytes]) -> None:
        self.template_index = template_index
        self.first_number = first_number
        self.texts = texts


class StreamParts:
    """The events of a stream in their order, as `parts`: runs of `templates`, and literal events.

    `size`: an estimate of the bytes to store: all texts, and an eighth of each literal event, which compresses well.
    Comments are left out.
    """

    def __init__(self) -> None:
        self._begin = self._end = b""  # before and after the text of the next event, if it has the current template
        self._current_template = -1
        self._is_numbered = False
        self._next_number = 0
        self._run_texts: list[bytes] = []
        self.parts: list[TemplateRun | bytes] = []
        self.templates: list[Template] = []
        self.size = 0

    def try_append(self, frames: bytes) -> bool:
        """Takes one or more events if they have a known template. If not, takes nothing; then call `append`."""
        begin, end = self._begin, self._end
        if not begin or not frames.startswith(begin) or not frames.endswith(end):
            return self._try_other_templates(frames)
        if len(frames) < len(begin) + len(end):
            return False
        text = frames[len(begin) : -len(end)]
        # A byte by its number: `in` with an integer is the fast search for a single byte.
        if _QUOTE not in text and _NEWLINE not in text:
            self._run_texts.append(text)
            self.size += len(text)
            if self._is_numbered:
                self._set_next_number(self._next_number + 1)
            return True
        # Escaped quotes, or several events. Numbered ones differ in what is between their texts, so they do not split.
        texts = text.split(end + begin) if not self._is_numbered else [text]
        for piece in texts:
            if _NEWLINE in piece or (_QUOTE in piece and STRING_CONTENT.fullmatch(piece) is None):
                return False  # nothing is appended yet, so the caller can append all of `frames`
        self._run_texts += texts
        self.size += sum(map(len, texts))
        if self._is_numbered:
            self._set_next_number(self._next_number + 1)
        return True

    def try_append_with_ids(self, frames: bytes, cutter: TokenIdCutter) -> bytes | None:
        """As `try_append`, for an event with ids of tokens; returns it without them. None if it takes nothing."""
        begin, end = self._begin, self._end
        if not begin or self._is_numbered:
            return None
        text = cutter.cut_text(frames, begin, end)
        if text is None:
            return None
        self._run_texts.append(text)
        self.size += len(text)
        return begin + text + end

    def _try_other_templates(self, frames: bytes) -> bool:
        for index, template in enumerate(self.templates):
            number = 0
            if template.is_numbered:
                match = _SEQUENCE_NUMBER.search(frames)
                if match is None:
                    continue
                number = int(match[1])
            begin, end = template.begin_with(number), template.end_with(number)
            if len(frames) < len(begin) + len(end) or not frames.startswith(begin) or not frames.endswith(end):
                continue
            text = frames[len(begin) : -len(end)]
            if _NEWLINE in text or (_QUOTE in text and STRING_CONTENT.fullmatch(text) is None):
                continue
            self._start_run(index, number)
            self._append_text(text)
            return True
        return False

    def learn_template(self, frames: bytes) -> bool:
        """Makes a template of a single event that has a text, and takes the event.

        The caller must have checked everything else in the event, since later events of the template are not decoded.
        """
        if len(self.templates) >= MAX_TEMPLATES or frames.find(b"\n\n") != len(frames) - 2 or frames[0] == _COLON:
            return False
        field = _TEXT_FIELD.search(frames)
        if field is None or FINISH_REASON.search(frames) is not None:
            return False
        end = frames.find(b'"', field.end())
        # An event with an empty text, such as the first one of a chat, is seldom followed by others of its form. A text
        # with an escape may have an escaped quote at `end`.
        if end <= field.end() or frames.find(b"\\", field.end(), end) >= 0:
            return False
        self.templates.append(Template(frames[: field.end()], frames[end:]))
        number = _SEQUENCE_NUMBER.search(frames)
        self._start_run(len(self.templates) - 1, int(number[1]) if number is not None else 0)
        self._append_text(frames[field.end() : end])
        return True

    def append(self, frames: bytes) -> None:
        """Takes any events: one by one, by a known or a new template where possible, else literally."""
        if frames.find(b"\n\n") == len(frames) - 2:  # a single event, which `try_append` has refused as a rule
            if not self.learn_template(frames):
                self._append_literal(frames)
            return
        self.append_events(split_events(frames))

    def append_events(self, events: list[bytes]) -> None:
        """As `append`."""
        for event in events:
            if not self.try_append(event) and not self.learn_template(event):
                self._append_literal(event)

    def _append_literal(self, event: bytes) -> None:
        if not event or (event[0] == _COLON and is_comment(event)):
            return
        self.parts.append(event)
        self.size += max(len(event) // _LITERAL_DIVISOR, _MIN_PART_SIZE)
        if self._current_template >= 0:
            # Later events of the current template come after this one, so they need a run of their own.
            self._start_run(self._current_template, self._next_number)

    def _start_run(self, index: int, number: int) -> None:
        self._current_template = index
        self._is_numbered = self.templates[index].is_numbered
        self._set_next_number(number)
        self._run_texts = []
        self.parts.append(TemplateRun(index, number, self._run_texts))
        self.size += _MIN_PART_SIZE

    def _set_next_number(self, number: int) -> None:
        template = self.templates[self._current_template]
        self._next_number = number
        self._begin, self._end = template.begin_with(number), template.end_with(number)

    def _append_text(self, text: bytes) -> None:
        self._run_texts.append(text)
        self.size += len(text)
        if self._is_numbered:
            self._set_next_number(self._next_number + 1)

    def discard(self) -> None:
        """Frees the events; `size` stays."""
        self.parts = []
        self._run_texts = []
        self._current_template = -1
        self._begin = b""

    def has_valid_texts(self) -> bool:
        """Whether each text of a run is the content of a JSON string, given that the `merged_events` are JSON."""
        # As the joined texts are valid, a single one can only be invalid if it cuts an escape in two; so only texts
        # with a backslash are checked. If one of them ends inside an escape, its closing quote is escaped here and the
        # string goes on: either the list has fewer strings than texts, or it is no JSON. (A UTF-8 character that is cut
        # in two is not detected.)
        texts = [
            text for part in self.parts if isinstance(part, TemplateRun) for text in part.texts if _BACKSLASH in text
        ]
        if not texts:
            return True
        joined = b'["%b"]' % b'","'.join(texts)
        try:
            return len(_decode_texts(joined)) == len(texts)
        except msgspec.DecodeError:
            return self._has_cut_pairs(texts, joined)

    def _has_cut_pairs(self, texts: list[bytes], joined: bytes) -> bool:
        """Whether the texts are valid but for pairs of surrogates, of which one text has the half and the next one the
        other: then the texts of each run are valid together.
        """
        readable = repaired(joined)
        if readable is None:
            return False
        wholes = [b"".join(part.texts) for part in self.parts if isinstance(part, TemplateRun)]
        try:
            return len(_decode_texts(readable)) == len(texts) and bool(_decode_texts(b'["%b"]' % b'","'.join(wholes)))
        except msgspec.DecodeError:
            return False

    def merged_events(self, may_merge: Callable[[bytes, bytes], bool]) -> list[bytes]:
        """The events in their order, with each run merged into one event that has all of its text.

        `may_merge` gets the bytes before and after the text; a run for which it returns False is not merged.
        """
        merges: list[bool | None] = [None] * len(self.templates)  # `may_merge` decodes, so it is called once a template
        events: list[bytes] = []
        for part in self.parts:
            if not isinstance(part, TemplateRun):
                events.append(part)
                continue
            index, number = part.template_index, part.first_number
            template = self.templates[index]
            begin, end = template.begin_with(number), template.end_with(number)
            may = merges[index]
            if may is None:
                may = merges[index] = may_merge(begin, end)
            if may:
                if part.texts:
                    events.append(b"".join((begin, *part.texts, end)))
            else:
                for text in part.texts:
                    events.append(b"".join((template.begin_with(number), text, template.end_with(number))))
                    number += 1
        return events
