"""JSON Lines, checked for their form: each line is a JSON object. What the objects mean is checked by others.

Source: https://jsonlines.org
"""

import re
from typing import Final

import msgspec

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_BLANK: Final = re.compile(rb"[ \t\r]*")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class JsonLineError(Exception):
    """`number`: of the line, from 1. `problem`: what it is, as in "line 3 is not valid JSON"."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self.number = number
        self.problem = problem


class JsonLines:
    """The lines of a file, fed in pieces of any size.

    - `feed` and `end` raise JsonLineError at the first line that is no JSON object, or has more than `max_line` bytes.
    - A line may be empty only at the end of the file.
    - No more than one line is held: `held` bytes.
    - `count`: the lines so far, without empty ones.
    """

    def __init__(self, max_line: int) -> None:
        self.count = 0
        self.held = 0
        self._max_line = max_line
        self._parts: list[bytes] = []  # of the last line, which is not complete
        self._number = 1
        self._blank: int | None = None  # the number of the first empty line

    def feed(self, data: bytes) -> None:
        first, *others = data.split(b"\n")
        self._add(first)
        for piece in others:
            self._end_line()
            self._add(piece)

    def end(self) -> None:
        self._end_line()

    def _add(self, piece: bytes) -> None:
        self.held += len(piece)
        if self.held > self._max_line:
            raise JsonLineError(self._number, f"has more than {self._max_line} bytes")
        self._parts.append(piece)

    def _end_line(self) -> None:
        line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.held = 0
        if _BLANK.fullmatch(line):
            self._blank = self._blank or self._number
        elif self._blank is not None:
            raise JsonLineError(self._blank, "is empty; only the end of a file may be")
        else:
            self._check(line)
            self.count += 1
        self._number += 1

    def _check(self, line: bytes) -> None:
        try:
            _decode(line)
            if not line.isascii():
                # msgspec passes over the values without decoding them.
                line.decode()
        except UnicodeDecodeError:
            raise JsonLineError(self._number, "is not UTF-8") from None
        except msgspec.ValidationError:
            raise JsonLineError(self._number, "is not a JSON object") from None
        except (msgspec.DecodeError, RecursionError):
            if line.startswith(_BYTE_ORDER_MARK):
                raise JsonLineError(self._number, "begins with a byte order mark, which JSON may not have") from None
            raise JsonLineError(self._number, "is not valid JSON") from None
