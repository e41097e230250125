"""The result of a generation."""

from typing import Final

import msgspec

from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.errors import UPSTREAM, ApiError

LOST: Final = "lost"


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a generation.

    - `complete`: the engine ended the response normally.
    - `body`: the response, if it is JSON; `recorded_response`: what can be replayed of it, if anything.
    - `endings`: the last frames of a stream, for subscribers without and with the usage event.
    - `generation_ms`: how long the engine took; 0 is unknown.
    - `error`: the error for the subscribers if it is not complete; `error_reason`: the same as a word for metrics.
      Not complete and no error: the response is in the cache already, and subscribers retry.
    - `had_data`: whether a token came before the error, so that another attempt may succeed.
    - `is_private`: it names memory of one engine, so it is for the client that the generation was started for.
    """

    complete: bool
    body: bytes | None = None
    recorded_response: RecordedResponse | None = None
    endings: tuple[bytes, bytes] = (b"", b"")
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generation_ms: int = 0
    error: ApiError | None = None
    error_reason: str | None = None
    had_data: bool = False
    is_private: bool = False


def lost_result() -> GenerationResult:
    """The result if the generation's process is gone, or its task was cancelled, without another result."""
    error = ApiError(502, "The response was interrupted: its router process is gone.", kind=UPSTREAM, code="lost")
    return GenerationResult(complete=False, error=error, error_reason=LOST, had_data=True)
