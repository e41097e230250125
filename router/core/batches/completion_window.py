"""`completion_window`: in which time a batch is to be complete. OpenAI knows `24h` alone."""

import re
from typing import Final

from router.errors import ApiError, bad_request

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})(m|h|d)")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}
MAX_WINDOW: Final = 30 * 86400


def parse_window(text: str) -> int:
    """Seconds. Raises ApiError (400)."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match is not None else 0
    if not 0 < seconds <= MAX_WINDOW:
        raise _invalid()
    return seconds


def _invalid() -> ApiError:
    return bad_request(
        "`completion_window` must be a duration such as 24h, at most 30d.",
        param="completion_window", code="invalid_completion_window",
    )  # fmt: skip
