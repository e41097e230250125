"""A mistake in the configuration: its place, its message, and which values are withheld as possible secrets."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

Place = tuple[str | int | None, ...]
"""Names of tables and settings, and indices of lists; None matches every index."""

_LONGEST: Final = 40
"""Characters; a longer value may be a key, and is not needed to find the place."""

_SECRET: Final = re.compile(r"@|\b(sk|rh)-|\b(sha256:|bearer\b)", re.IGNORECASE)
"""User and password before a host, keys in the form of OpenAI's or of `roundhouse keys new`, hashes and tokens."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class ConfigurationError(Exception):
    """The configuration cannot be used; `mistakes`, and so the message, has a line for each mistake."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes: Final = tuple(" ".join(mistake.splitlines()) for mistake in mistakes)
        super().__init__("\n".join(self.mistakes))


class Mistake(msgspec.Struct, frozen=True):
    """What is wrong at a place.

    - `message`: what is wrong, and how to correct it. With `of_value`, it continues the value, as in "'key' is none of
      open, keys, header"; without, it is a sentence of its own.
    - `reads`: the other places that it depends on. If one of them has a mistake, this may not be one.
    """

    place: Place
    message: str
    of_value: bool = True
    reads: tuple[Place, ...] = ()

    def line(self, shown: Mapping[Place, str]) -> str:
        """The message; `shown` has the values that may be shown."""
        place = written(self.place)
        if not self.of_value:
            return f"{place}: {self.message}"
        return f"{place}: {shown[self.place]} {self.message}" if self.place in shown else f"{place} {self.message}"


def written(place: Place) -> str:
    """A place in readable form: `engine[0].url`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part or '')}" for part in place)
    return "".join(parts).removeprefix(".")


def overlap(first: Place, second: Place) -> bool:
    """Whether the places are equal, or one contains the other."""
    return all(a == b or a is None or b is None for a, b in zip(first, second, strict=False))


def show(value: Any) -> str | None:
    """A value in a form that may be shown; None if it may contain a secret."""
    if isinstance(value, str):
        return None if _may_be_secret(value) else repr(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "a number this large"
    if isinstance(value, list | dict):  # its items may be secrets
        return "a list" if isinstance(value, list) else "a table"
    return str(value)


def hint(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to a mistyped one, if any is."""
    if len(name) > _LONGEST:  # comparing takes time with the square of the length
        return None
    return next(iter(get_close_matches(name.lower(), list(known), n=1)), None)


def _may_be_secret(text: str) -> bool:
    return len(text) > _LONGEST or _SECRET.search(text) is not None


def _name(text: str) -> str:
    if _BARE.fullmatch(text) and not _may_be_secret(text):
        return text
    if _may_be_secret(text):
        return '"…"'
    return json.dumps(text, ensure_ascii=not text.isprintable()).replace("\x7f", "\\u007f")
