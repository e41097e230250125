"""One form of JSON that was written in different ways, also where only its beginning is there."""

import json
import re
from typing import Final

_PART: Final = re.compile(r'"(?:[^"\\]+|\\.)*"?|[^"\s]+', re.DOTALL)
"""A string, which may lack its end, or what stands between strings and white space."""

_ESCAPES: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def compact_json(text: str) -> str:
    """JSON, or its beginning, without white space between its parts and without escapes that it does not need."""
    return "".join([_ESCAPES.sub(_unescaped, part) for part in _PART.findall(text)])


def _unescaped(escapes: re.Match[str]) -> str:
    text = escapes[0]
    if text == r"\/":
        return "/"
    if len(text) < len(r"\u0000"):
        return text
    decoded = json.loads(f'"{text}"')
    # Half a pair of surrogates has no other form.
    return text if _SURROGATE.search(decoded) else json.dumps(decoded, ensure_ascii=False)[1:-1]
