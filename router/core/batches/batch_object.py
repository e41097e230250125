"""A batch as clients see it.

Source: https://platform.openai.com/docs/api-reference/batch/object
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]

ENDED: Final = ("completed", "failed", "expired", "cancelled")


class RequestCounts(msgspec.Struct, frozen=True):
    """`cached`: those of the completed ones that no engine has worked on for this batch. OpenAI has no such field."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cached: int = 0


class BatchError(msgspec.Struct, frozen=True):
    """Why a batch has failed. `line`: of its input file, from 1 on."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True):
    data: tuple[BatchError, ...]
    object: str = "list"


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since the epoch.

    `paused`: no line begins until it is resumed. `waiting_for`: why no line runs, in words. OpenAI has neither.
    """

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: Mapping[str, str] | None = None
    paused: bool = False
    waiting_for: str | None = None
