"""A batch as a command reads it from a router, of this version or another."""

from typing import Any

import msgspec

from router.core.batches.batch_object import ENDED, BatchErrors


class Counts(msgspec.Struct, frozen=True):
    """Of lines. `cached`: of those completed, the ones that needed no generation; None if the router does not say."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cached: int | None = None

    @property
    def done(self) -> int:
        return self.completed + self.failed


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since the epoch. `status`: a later version may have others."""

    id: str
    status: str
    endpoint: str = ""
    input_file_id: str = ""
    completion_window: str = ""
    created_at: int = 0
    expires_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Counts | None = None
    errors: BatchErrors | None = None
    metadata: dict[str, str] | None = None
    paused: bool = False
    waiting_for: str | None = None

    @property
    def counts(self) -> Counts:
        return self.request_counts or Counts()

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def seconds(self) -> int | None:
        """From its creation to its end, by the clock of Redis."""
        # Not by the clock of this machine, which may be another, and a batch may have ended long ago.
        ended_at = self.completed_at or self.failed_at or self.expired_at or self.cancelled_at
        return None if ended_at is None else ended_at - self.created_at


class Batch:
    """`shown`: all that the router has sent, for --json. Raises msgspec.ValidationError."""

    def __init__(self, shown: Any) -> None:
        self.shown = shown
        self.view = msgspec.convert(shown, BatchView)
