"""What the arguments of `roundhouse batch run` say; all mistakes are found before anything is sent."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from router.commands.console import EXIT_USAGE, STDIO, fail

CACHE_CONTROL: Final = "cache_control"
"""The name in a batch's metadata that the router reads as `Cache-Control` of each of its requests."""

_MAX_LINE: Final = 64 << 20  # bytes of a first line that is read for its `url`


class _Line(msgspec.Struct):
    url: str = ""


def parse_metadata(pairs: Sequence[str], cache_control: str | None) -> dict[str, str]:
    """`pairs`: NAME=VALUE. A mistake ends the command."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            fail(f"--metadata {pair}: expected NAME=VALUE", EXIT_USAGE)
        if name in metadata:
            fail(f"--metadata {name}: it is given twice", EXIT_USAGE)
        metadata[name] = value
    if cache_control is not None:
        if CACHE_CONTROL in metadata:
            fail(f"--cache-control: --metadata {CACHE_CONTROL} says the same", EXIT_USAGE)
        metadata[CACHE_CONTROL] = cache_control
    return metadata


def check_window(text: str) -> None:
    """A mistake ends the command."""
    from router.core.batches.completion_window import parse_window
    from router.errors import ApiError

    try:
        parse_window(text)
    except ApiError:
        fail(f"--window {text}: expected a duration such as 90m, 24h or 7d, at most 30d", EXIT_USAGE)


def check_input(file: Path) -> None:
    """A file that cannot be read, or cannot be read twice, ends the command."""
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        fail(f"{file}: {error.strerror}", EXIT_USAGE)
    # The length must be known before it is sent, and its first line is read twice.
    if not file.is_file():
        fail(f"{file}: expected a regular file", EXIT_USAGE)
    if not file.stat().st_size:
        fail(f"{file}: the file is empty", EXIT_USAGE)


def check_outputs(outputs: Mapping[str, Path | None], file: Path | None) -> None:
    """Where the results are to go, by option; a place that takes none ends the command, before hours of work."""
    seen = {file.resolve(): str(file)} if file is not None else {}
    for option, path in outputs.items():
        if path is None or path == STDIO:
            continue
        if (other := seen.get(path.resolve())) is not None:
            fail(f"{option} {path}: it would replace {other}", EXIT_USAGE)
        seen[path.resolve()] = f"{option} {path}"
        folder = path.parent
        if path.is_dir():
            fail(f"{option} {path}: it is a directory", EXIT_USAGE)
        if not folder.is_dir():
            fail(f"{option} {path}: there is no directory {folder}", EXIT_USAGE)
        if not os.access(folder, os.W_OK) and not path.exists():
            fail(f"{option} {path}: the directory cannot be written", EXIT_USAGE)


def endpoint_of(file: Path) -> str:
    """The `url` of the first line. Without one, the command ends."""
    with file.open("rb") as stream:
        line = stream.readline(_MAX_LINE)
    try:
        url = msgspec.json.decode(line, type=_Line).url
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fail(f"{file}: the first line is no request of a batch: a JSON object with `url`", EXIT_USAGE)
    if not url:
        fail(f"{file}: the first line has no `url`; give the endpoint with --endpoint", EXIT_USAGE)
    return url
