"""The token counts of responses: those that an engine reports, and estimates."""

from typing import Any, Final

from router.core.endpoints.recording.recorded_response import ReportedUsage
from router.core.types import BYTES_PER_TOKEN

MAX_TOKEN_COUNT: Final = 2**53
"""No counter can take more; a larger number of an engine counts as this one."""


def parse_token_count(value: Any) -> int:
    """A number of tokens as an engine reports it, from 0 to MAX_TOKEN_COUNT; 0 for anything that is not a number.

    Some engines send `null` for a number that they do not know, and some send a float.
    """
    # Not below 0: counters can only be increased.
    return max(0, min(int(value), MAX_TOKEN_COUNT)) if type(value) is int or type(value) is float else 0


def parse_usage(value: Any) -> ReportedUsage | None:
    if not isinstance(value, dict):
        return None
    return ReportedUsage(
        parse_token_count(value.get("prompt_tokens")), parse_token_count(value.get("completion_tokens"))
    )


def estimate_usage(prompt_bytes: int, response_bytes: int) -> ReportedUsage:
    """Token counts for an engine that reports none: a token of text has about four bytes."""
    return ReportedUsage(prompt_bytes // BYTES_PER_TOKEN, -(-response_bytes // BYTES_PER_TOKEN))
