"""Splits a stream into templates and texts: nearly all events of a stream differ in their text alone.

Theory. In JSON a quote inside a string stands behind a backslash. So an event that begins and ends with the bytes that
stand around the text of another event, and whose bytes between them contain no unescaped quote, is that event with
another text: everything known of the other event beside its text holds for it too. It remains to be shown that the
bytes between are the inside of a JSON string. That is done once, at the end, for all texts together.

Some streams number their events (`sequence_number` of /v1/responses). The number is the one other thing that may
differ; a template computes it.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from router.core.endpoints.sse import split_events

MAX_TEMPLATES: Final = 8
"""Templates tried per stream before giving up."""

_TEXT_FIELD: Final = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking|partial_json)": ?"'
)
"""What stands before the text of an event. It cannot stand in a string, for it has quotes without a backslash."""

_FINISH_REASON: Final = re.compile(rb'"finish_reason":(?! ?null)')
"""An event in which a choice ends is no template: such events are few, and each says how the stream ended."""

_SEQUENCE_NUMBER: Final = re.compile(rb'"sequence_number": ?(0|[1-9]\d{0,14})(?!\d)')
_STRING_CONTENT: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
"""The inside of a JSON string that contains escaped quotes."""

_QUOTE: Final = ord('"')
_NEWLINE: Final = ord("\n")  # where a line of an event ends, inside of what is no string then
_BACKSLASH: Final = ord("\\")
_LITERAL_DIVISOR: Final = 8
_MIN_PART_SIZE: Final = 16  # bytes that a part counts at least, so that many small ones have a bound too

_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Template:
    """The bytes around the text of an event: `begin` and `end`.

    Where the event has a number, `begin` or `end` is made of two parts with the number between them; else `begin_after`
    and `end_after` are None.
    """

    __slots__ = ("begin", "begin_after", "end", "end_after")

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
    """Consecutive events of one template: its index, the number of the first event, and the texts."""

    __slots__ = ("first_number", "template_index", "texts")

    def __init__(self, template_index: int, first_number: int, texts: list[bytes]) -> None:
        self.template_index = template_index
        self.first_number = first_number
        self.texts = texts


class StreamParts:
    """The events of a stream in their order, as `parts`: runs of `templates`, and single events as they came.

    `size`: bytes held, where an event outside of a run counts an eighth of its length, for it will be compressed.
    """

    __slots__ = (
        "_begin",
        "_current_template",
        "_end",
        "_is_numbered",
        "_next_number",
        "_run_texts",
        "parts",
        "size",
        "templates",
    )

    def __init__(self) -> None:
        self._begin = self._end = b""  # around the text of the next event, if that is of the current template
        self._current_template = -1
        self._is_numbered = False
        self._next_number = 0
        self._run_texts: list[bytes] = []
        self.parts: list[TemplateRun | bytes] = []
        self.templates: list[Template] = []
        self.size = 0

    def try_append(self, frames: bytes) -> bool:
        """Takes one or more events if they are all of known templates; the others are for `keep`."""
        begin, end = self._begin, self._end
        if not begin or not frames.startswith(begin) or not frames.endswith(end):
            return self._try_other_templates(frames)
        if len(frames) < len(begin) + len(end):
            return False
        text = frames[len(begin) : -len(end)]
        if _QUOTE not in text and _NEWLINE not in text:
            self._run_texts.append(text)
            self.size += len(text)
            if self._is_numbered:
                self._set_next_number(self._next_number + 1)
            return True
        # Escaped quotes, or several events.
        texts = text.split(end + begin) if not self._is_numbered else [text]
        for piece in texts:
            if _NEWLINE in piece or (_QUOTE in piece and _STRING_CONTENT.fullmatch(piece) is None):
                return False
        self._run_texts += texts
        self.size += sum(map(len, texts))
        if self._is_numbered:
            self._set_next_number(self._next_number + 1)
        return True

    def _try_other_templates(self, frames: bytes) -> bool:
        for index, template in enumerate(self.templates):
            number = 0
            if template.is_numbered:
                found = _SEQUENCE_NUMBER.search(frames)
                if found is None:
                    continue
                number = int(found[1])
            begin, end = template.begin_with(number), template.end_with(number)
            if len(frames) < len(begin) + len(end) or not frames.startswith(begin) or not frames.endswith(end):
                continue
            text = frames[len(begin) : -len(end)]
            if _NEWLINE in text or (_QUOTE in text and _STRING_CONTENT.fullmatch(text) is None):
                continue
            self._start_run(index, number)
            self._append_text(text)
            return True
        return False

    def learn_template(self, frames: bytes) -> bool:
        """Makes a template of an event with a text, and takes the event; the caller has checked all else of it.

        An event without text, such as the first of a chat, is seldom like the others.
        """
        if len(self.templates) >= MAX_TEMPLATES or frames.find(b"\n\n") != len(frames) - 2:
            return False
        found = _TEXT_FIELD.search(frames)
        if found is None or _FINISH_REASON.search(frames) is not None:
            return False
        end = frames.find(b'"', found.end())
        if end <= found.end() or frames.find(b"\\", found.end(), end) >= 0:
            return False
        self.templates.append(Template(frames[: found.end()], frames[end:]))
        number = _SEQUENCE_NUMBER.search(frames)
        self._start_run(len(self.templates) - 1, int(number[1]) if number is not None else 0)
        self._append_text(frames[found.end() : end])
        return True

    def append(self, frames: bytes) -> None:
        """Keeps events that were not taken together; those among them that have a template are taken after all."""
        if frames.find(b"\n\n") == len(frames) - 2:
            if not self.learn_template(frames):
                self._append_literal(frames)
            return
        for event in split_events(frames):
            if not self.try_append(event) and not self.learn_template(event):
                self._append_literal(event)

    def _append_literal(self, event: bytes) -> None:
        if not event:
            return
        self.parts.append(event)
        self.size += max(len(event) // _LITERAL_DIVISOR, _MIN_PART_SIZE)
        if self._current_template >= 0:  # what comes next of the same template begins a new run
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
        """Drops what is held; nothing will be made of it."""
        self.parts = []
        self._run_texts = []
        self._current_template = -1
        self._begin = b""

    def has_valid_texts(self) -> bool:
        """Whether every text in a run is the inside of a JSON string, given that the `merged` events are JSON.

        Then only an escape can be cut in two. A text that ends inside one leaves its string open here: the quotes
        behind it pair up otherwise and there are fewer strings, or it is no JSON.
        """
        texts = [
            text for part in self.parts if isinstance(part, TemplateRun) for text in part.texts if _BACKSLASH in text
        ]
        if not texts:
            return True
        try:
            return len(_decode_texts(b'["%b"]' % b'","'.join(texts))) == len(texts)
        except msgspec.DecodeError:
            return False

    def merged_events(self, may_merge: Callable[[bytes, bytes], bool]) -> list[bytes]:
        """The events in their order, with each run as one event that has all of its text.

        `may_merge` gets what stands around the text; a run for which it says no stays as many events.
        """
        merges: list[bool | None] = [None] * len(self.templates)
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
