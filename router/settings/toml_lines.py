"""The lines of a TOML file: where each table, setting and item stands. The standard library's parser does not say.

Theory of operation. The text is valid TOML, which tomllib has read before, so nothing is checked here: a statement is a
heading or `key = value`; a value is a list, an inline table, or text whose end is found by its quotes.
"""

import re
from collections.abc import Mapping
from typing import Final

from router.settings.mistakes import Place

_SKIPPED: Final = re.compile(r"(?:[\s,]|#[^\n]*)*")
_KEY: Final = re.compile(r'[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_DOT: Final = re.compile(r"[ \t]*\.[ \t]*")
# A text of several lines may end with one or two quotes of its own, before the three that close it.
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")|\'\'\'.*?\'{3,5}(?!\')|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL
)
_OTHER: Final = re.compile(r"[^,\]}#\n]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_ESCAPED: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


def find_lines(text: str) -> Mapping[Place, int]:
    """The line of each place, from 1 on: of a table its heading, or its first mention."""
    return _Scanner(text).scan()


def line_of(lines: Mapping[Place, int], place: Place) -> int | None:
    """The line of a place, or of what contains it: a setting that is missing has none of its own."""
    if None in place:  # every index
        place = place[: place.index(None)]
    while place:
        if (line := lines.get(place)) is not None:
            return line
        place = place[:-1]
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Place, int] = {}
        self._counts: dict[Place, int] = {}  # of lists of tables: how many tables there are so far
        self._counted = (0, 1)  # up to where lines are counted, and the line there

    def scan(self) -> dict[Place, int]:
        table: Place = ()
        while self._skip():
            start = self._at
            if self._text[start] != "[":
                self._setting(table)
                continue
            is_list = self._text.startswith("[[", start)
            self._at += 2 if is_list else 1
            table = self._heading(self._names(), start, is_list=is_list)
            self._at = self._text.index("]", self._at) + (2 if is_list else 1)
        return self._lines

    def _heading(self, names: list[str], start: int, *, is_list: bool) -> Place:
        """The place of a table. A name on the way to it that is a list stands for its last table."""
        place: Place = ()
        for number, name in enumerate(names, 1):
            place = (*place, name)
            self._note(place, start)
            if is_list and number == len(names):
                self._counts[place] = self._counts.get(place, 0) + 1
            if place in self._counts:
                place = (*place, self._counts[place] - 1)
                self._note(place, start)
        return place

    def _setting(self, table: Place) -> None:
        start = self._at
        place = table
        for name in self._names():
            place = (*place, name)
            self._note(place, start)
        self._skip()
        self._at += 1  # =
        self._value(place)

    def _value(self, place: Place) -> None:
        self._skip()
        start = self._at
        opening = self._text[start]
        if opening == "[":
            self._at += 1
            index = 0
            while self._skip() and self._text[self._at] != "]":
                self._note((*place, index), self._at)
                self._value((*place, index))
                index += 1
            self._at += 1
        elif opening == "{":
            self._at += 1
            while self._skip() and self._text[self._at] != "}":
                self._setting(place)
            self._at += 1
        else:
            # Strings first: a quote may hide a comma, a bracket or a `#`, which end anything else.
            match = _STRING.match(self._text, start) or _OTHER.match(self._text, start)
            assert match is not None  # the second also matches nothing
            self._at = match.end()

    def _names(self) -> list[str]:
        """The parts of a dotted key."""
        names = []
        while True:
            self._skip()
            match = _KEY.match(self._text, self._at)
            assert match is not None, "the text is valid"
            self._at = match.end()
            names.append(_unquoted(match[0]))
            dot = _DOT.match(self._text, self._at)
            if dot is None:
                return names
            self._at = dot.end()

    def _skip(self) -> bool:
        """Skips what separates; False at the end of the text."""
        match = _SKIPPED.match(self._text, self._at)
        assert match is not None  # it also matches nothing
        self._at = match.end()
        return self._at < len(self._text)

    def _note(self, place: Place, position: int) -> None:
        # Positions only grow, so each line is counted once.
        counted, line = self._counted
        if position > counted:
            line += self._text.count("\n", counted, position)
            self._counted = position, line
        self._lines.setdefault(place, line)


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    return _ESCAPE.sub(_replacement, key[1:-1]) if key[0] == '"' else key


def _replacement(match: "re.Match[str]") -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] in "uU" and len(code) > 1 else _ESCAPED.get(code, code)
