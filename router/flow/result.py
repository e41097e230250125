"""How a flight ended."""

from typing import Final

import msgspec

from router.core.endpoints.recorded_response import RecordedResponse
from router.errors import UPSTREAM, ApiError

LOST: Final = "lost"


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a flight ended.

    - `whole`: the engine ended the answer well. `body`: what it said, if that was JSON; `recording`: what can be
      replayed of it, if anything; `endings`: how its stream closes, for readers without and with the usage event.
    - `error`: what its readers are told where it is not whole; `reason`: the same as a word for metrics.
    - `begun`: whether a token had come before the error, so that another attempt may do better.
    """

    complete: bool
    body: bytes | None = None
    recorded_response: RecordedResponse | None = None
    endings: tuple[bytes, bytes] = (b"", b"")
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: ApiError | None = None
    error_reason: str | None = None
    had_data: bool = False


def lost_result() -> GenerationResult:
    """The landing of a flight of which nothing more will be heard, and nobody knows why."""
    error = ApiError(502, "The answer broke off: the router that generated it is gone.", kind=UPSTREAM, code="lost")
    return GenerationResult(complete=False, error=error, error_reason=LOST, had_data=True)
