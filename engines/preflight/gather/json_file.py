"""Reads JSON files of bounded size."""

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class UnreadableFileError(Exception):
    """The file is not there, too large, or not what was expected; the message is a phrase that begins with its name."""


def read_json_file(path: Path, kind: type[T], max_bytes: int) -> T:
    """Raises UnreadableFileError."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as failure:
        reason = "is missing" if isinstance(failure, FileNotFoundError) else f"cannot be read ({failure.strerror})"
        raise UnreadableFileError(f"{path.name} {reason}") from None
    if len(content) > max_bytes:
        raise UnreadableFileError(f"{path.name} is larger than {max_bytes:,} bytes and was not read")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        raise UnreadableFileError(f"{path.name} cannot be decoded ({failure})") from None
