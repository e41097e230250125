"""`Prefer: wait=N`: how long a client is willing to wait (RFC 7240, section 4.3)."""

import re
from typing import Final

_WAIT: Final = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?:;.*)?', re.IGNORECASE)
_MAX_LENGTH: Final = 512  # bytes; a longer header is ignored


def parse_wait(header: bytes) -> float | None:
    """Seconds; None if the header states none. Of several, the first counts (section 2)."""
    if len(header) > _MAX_LENGTH:
        return None
    for preference in header.decode("latin-1").split(","):
        match = _WAIT.fullmatch(preference)
        if match is not None:
            return float(match[1])
    return None
