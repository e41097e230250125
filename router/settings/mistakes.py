"""A mistake in the configuration: its place, how it is told, and what is not said of it because it may be a secret."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

Place = tuple[str | int | None, ...]
"""Names of tables and settings, and indices of lists; None stands for each index."""

_LONGEST: Final = 40
"""Characters; a longer value may be a key, and tells a reader no more than its place does."""

_SECRET: Final = re.compile(r"@|\b(sk|rh)-|\b(sha256:|bearer\b)", re.IGNORECASE)
"""A user and password before a host, keys as OpenAI and `roundhouse keys new` make them, and what is made of keys."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class ConfigurationError(Exception):
    """The configuration cannot be used; `mistakes` has a line for each thing that is wrong, and so has the message."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes: Final = tuple(" ".join(mistake.splitlines()) for mistake in mistakes)
        super().__init__("\n".join(self.mistakes))


class Mistake(msgspec.Struct, frozen=True):
    """What is wrong at a place.

    - `said`: what is wrong, and what to do. It continues the value, as in "'key' is none of open, keys, header"; or, if
      it is not `of_value`, it stands alone.
    - `reads`: the other places that it follows from. If one of them has a mistake, this one may be none.
    """

    place: Place
    said: str
    of_value: bool = True
    reads: tuple[Place, ...] = ()

    def line(self, shown: Mapping[Place, str]) -> str:
        """As it is told; `shown` has the values that may be told."""
        place = written(self.place)
        if not self.of_value:
            return f"{place}: {self.said}"
        return f"{place}: {shown[self.place]} {self.said}" if self.place in shown else f"{place} {self.said}"


def written(place: Place) -> str:
    """A place as the file's reader knows it: `engine[0].url`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_name(part or '')}" for part in place)
    return "".join(parts).removeprefix(".")


def overlap(one: Place, other: Place) -> bool:
    """Whether the places are the same, or one of them is within the other."""
    return all(a == b or a is None or b is None for a, b in zip(one, other, strict=False))


def show(value: Any) -> str | None:
    """A value as it may be told; None if it may be a secret, or a part of one."""
    if isinstance(value, str):
        return None if _may_be_secret(value) else repr(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "so large a number"
    if isinstance(value, list | dict):  # what is in it may be anything
        return "a list" if isinstance(value, list) else "a table"
    return str(value)


def hint(name: str, known: Iterable[str]) -> str | None:
    """Which of the names that are known was meant."""
    if len(name) > _LONGEST:  # comparing takes the square of it
        return None
    return next(iter(get_close_matches(name.lower(), list(known), n=1)), None)


def _may_be_secret(text: str) -> bool:
    """Whether it could be a key of ours or of others, or hold a password."""
    return len(text) > _LONGEST or _SECRET.search(text) is not None


def _name(text: str) -> str:
    if _BARE.fullmatch(text) and not _may_be_secret(text):
        return text
    if _may_be_secret(text):
        return '"…"'
    return json.dumps(text, ensure_ascii=not text.isprintable()).replace("\x7f", "\\u007f")
