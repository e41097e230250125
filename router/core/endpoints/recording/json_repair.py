"""Reads JSON that strict decoders refuse and clients take: NaN and infinity, and half a pair of surrogates.

Engines in Python write NaN as it is, and cut a text between tokens: one event may have `\\ud83d`, the next one the rest
of the emoji. Neither is a failure. What is repaired here is only for reading: the client gets the engine's bytes.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

_Decoded = TypeVar("_Decoded")

_NOT_FINITE: Final = re.compile(rb"(?<=[\[,:\s])-?(?:NaN|Infinity)(?=\s*[,\]}])")
# A pair of surrogates, then a single one, then any other escape: its backslash may be escaped itself.
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
_REPLACEMENT: Final = rb"\ufffd"


def repaired(data: bytes) -> bytes | None:
    """`data` with null for what is no finite number, and U+FFFD for a single surrogate; None if it has neither."""
    fixed = data
    if b"NaN" in data or b"Infinity" in data:
        fixed = _NOT_FINITE.sub(b"null", fixed)
    if b"\\ud" in fixed or b"\\uD" in fixed:
        fixed = _ESCAPE.sub(lambda match: _REPLACEMENT if match[1] is not None else match[0], fixed)
    return fixed if fixed != data else None


def decode_repaired(decode: Callable[[bytes], _Decoded], data: bytes) -> _Decoded:
    """What msgspec's `decode` makes of `data`, or of `repaired(data)` where it refuses that. Raises what it raises."""
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        readable = repaired(data)
        if readable is None:
            raise error  # noqa: TRY201 - compiled, a `raise` without it costs more
        return decode(readable)
