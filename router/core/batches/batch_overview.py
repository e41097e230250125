"""What administrators see of batches: how far each is, without names of files, metadata or prompts.

Times are in seconds since the epoch by Redis' clock. None is unknown, never 0.
"""

from typing import Final, Literal

import msgspec

from router.core.batches.batch_object import BatchObject, BatchStatus
from router.core.batches.progress_rate import ProgressRate

OpenState = Literal[
    "validating", "running", "waiting", "limited", "outside_hours", "paused", "finalizing", "cancelling"
]

OPEN_STATES: Final[tuple[OpenState, ...]] = (
    "validating", "running", "waiting", "limited", "outside_hours", "paused", "finalizing", "cancelling",
)  # fmt: skip


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """`completed`, `failed`: lines with a result; `cached`: those of the completed ones that needed no engine.

    `lines_per_second`: of the last minute. `seconds_left`: not while it waits. `ended_at`: None while it is open.
    """

    id: str
    tenant: str
    endpoint: str
    status: BatchStatus
    paused: bool
    waiting_for: str | None
    total: int
    completed: int
    failed: int
    cached: int
    lines_per_second: float | None
    seconds_left: float | None
    created_at: int
    expires_at: int | None
    ended_at: int | None


class BatchesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`enabled`: whether the router that answers has a folder for batches. `open_batches`: also those without a row."""

    enabled: bool
    now: float | None = None
    open_batches: int = 0
    open: tuple[BatchRow, ...] = ()
    ended: tuple[BatchRow, ...] = ()


def batch_row(tenant: str, batch: BatchObject, rate: ProgressRate | None = None) -> BatchRow:
    """`rate`: of the looks at it so far."""
    counts = batch.request_counts
    runs = rate is not None and batch.status == "in_progress" and not batch.paused
    return BatchRow(
        id=batch.id,
        tenant=tenant,
        endpoint=batch.endpoint,
        status=batch.status,
        paused=batch.paused,
        waiting_for=batch.waiting_for,
        total=counts.total,
        completed=counts.completed,
        failed=counts.failed,
        cached=counts.cached,
        lines_per_second=_rounded(rate.per_second) if runs and rate is not None else None,
        seconds_left=(
            _rounded(rate.seconds_left(counts.total))
            if runs and rate is not None and batch.waiting_for is None
            else None
        ),
        created_at=batch.created_at,
        expires_at=batch.expires_at,
        ended_at=batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at,
    )


def open_state(status: str, *, paused: bool, waiting: bool, limited: bool, is_open: bool) -> OpenState | None:
    """`waiting`: it says why no line runs. `limited`: that is a limit or a budget of its tenant.

    `is_open`: whether lines may run now. None for one that has ended.
    """
    if paused and status in ("validating", "in_progress"):
        return "paused"
    if status == "in_progress":
        if not is_open:
            return "outside_hours"
        return "limited" if limited else "waiting" if waiting else "running"
    return next((state for state in OPEN_STATES if state == status), None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
