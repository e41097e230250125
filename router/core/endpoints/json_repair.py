"""Reads JSON that strict decoders refuse and clients take: NaN and infinity, and half a pair of surrogates.

Engines in Python write NaN as it is, and cut a text between tokens: one event may have `\\ud83d`, the next one the rest
of the emoji. Neither is a failure. What is repaired here is only for reading: the client gets the engine's bytes.
"""

import re
from typing import Final

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
