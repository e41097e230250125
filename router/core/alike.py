"""Events that are alike but for their text, which is nearly all that a stream consists of.

Theory. In JSON a quote stands inside a string only behind a backslash. So an event that begins and ends with the very
bytes that stand around the text of another one, and has no quote between them, is that event with another text:
whatever has been found of the other beside its text holds for it too. One thing is left to be shown, that what stands
between is the inside of a JSON string; that is done once, for the texts of all of them.
"""

import re
from typing import Final

import msgspec

_TEXT: Final = re.compile(rb'"(?:content|text|reasoning|reasoning_content|arguments)": ?"')
"""What stands before the text of an event. It cannot stand in a string, for it has quotes without a backslash."""

_END: Final = re.compile(rb'"finish_reason":(?! ?null)')
"""An event in which a choice ends stands for itself: in how a stream ended, the last such event counts."""

_LESSONS: Final = 8
"""How often an event is learned of one stream: where each differs from the others in more than its text, in vain."""

_QUOTE: Final = ord('"')

_read_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Alike:
    """The event that was learned last, and the texts of all that are like one that was learned."""

    __slots__ = ("_begin", "_end", "_lessons", "_texts")

    def __init__(self) -> None:
        self._begin = self._end = b""
        self._texts: list[bytes] = []
        self._lessons = _LESSONS

    def take(self, frames: bytes) -> bool:
        """Takes an event if it is the one that was learned, but for its text."""
        begin, end = self._begin, self._end
        if not begin or not frames.startswith(begin) or not frames.endswith(end):
            return False
        text = frames[len(begin) : -len(end)]
        if _QUOTE in text or len(frames) < len(begin) + len(end):
            return False
        self._texts.append(text)
        return True

    def learn(self, frames: bytes) -> None:
        """Learns what came, if it is one event with a text; it is for the caller to find out all else of it."""
        if self._lessons <= 0 or frames.find(b"\n\n") != len(frames) - 2:
            return
        if self._begin and frames.startswith(self._begin):
            return  # such ones it knows; this one has more to say, or a quote
        self._lessons -= 1
        found = _TEXT.search(frames)
        if found is None or _END.search(frames) is not None:
            return
        end = frames.find(b'"', found.end())
        if end >= 0 and frames.find(b"\\", found.end(), end) < 0:
            self._begin, self._end = frames[: found.end()], frames[end:]

    def forget(self) -> None:
        """Forgets the texts: nobody will ask for them."""
        self._texts.clear()

    def are_texts(self) -> bool:
        """Whether each that was taken for a text was the inside of a JSON string.

        Were it none, the quote behind it would end no string, or there would be something that JSON does not allow; as
        no text has a quote, nothing can make up for that, and the list is no list, or a shorter one.
        """
        if not self._texts:
            return True
        try:
            return len(_read_texts(b'["%b"]' % b'","'.join(self._texts))) == len(self._texts)
        except msgspec.DecodeError:
            return False
