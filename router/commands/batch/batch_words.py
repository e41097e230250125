"""What is said of a batch, and the exit code of `roundhouse batch run`; plain functions."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from router.commands.batch.batch_view import BatchView
from router.commands.console import format_duration
from router.core.plural import pluralize

EXIT_LINES_FAILED: Final = 3
"""The batch is complete, but some lines have an error in place of an answer."""

EXIT_NOT_COMPLETED: Final = 4
"""The batch has failed, has expired or was cancelled."""

EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""

_STAGES: Final = {
    "validating": "the router checks the file",
    "finalizing": "the router writes the results",
    "cancelling": "the batch is being cancelled",
}
_ENDS: Final = {
    "completed": "is complete",
    "failed": "has failed",
    "expired": "has expired",
    "cancelled": "was cancelled",
}
_MAX_ERRORS: Final = 10


def exit_code(batch: BatchView) -> int:
    """Of a batch that has ended."""
    if batch.status != "completed":
        return EXIT_NOT_COMPLETED
    return EXIT_LINES_FAILED if batch.counts.failed else 0


def stage(batch: BatchView) -> str:
    """What happens now, besides the figures."""
    if batch.paused and batch.status in ("validating", "in_progress"):
        return f"paused; `roundhouse batch resume {batch.id}` resumes it"
    if batch.waiting_for:
        return f"waiting: {batch.waiting_for}"
    return _STAGES.get(batch.status, "")


def figures(batch: BatchView, per_second: float | None, seconds_left: float | None) -> str:
    """`per_second`: lines; None if that is not known yet."""
    counts = batch.counts
    parts = [f"{counts.done:,} of {pluralize(counts.total, 'line')}"]
    if per_second:
        # Lines of long answers may take minutes each.
        parts.append(f"{per_second:,.1f}/s" if per_second >= 1 else f"{60 * per_second:,.1f}/min")
    if counts.cached:
        parts.append(f"{counts.cached:,} from the cache")
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    if seconds_left is not None:
        parts.append(f"{format_duration(seconds_left)} left")
    return ", ".join(parts)


def summary(batch: BatchView) -> Iterator[str]:
    """Lines about a batch that has ended."""
    counts = batch.counts
    took = "" if batch.seconds is None else f" in {format_duration(batch.seconds)}"
    answered = f"{counts.completed:,} of {pluralize(counts.total, 'line')} answered"
    cached = f", {counts.cached:,} of them from the cache" if counts.cached else ""
    failed = f", {counts.failed:,} failed" if counts.failed else ""
    yield f"{batch.id} {_ENDS.get(batch.status, batch.status)}{took}: {answered}{cached}{failed}"
    yield from errors(batch)


def errors(batch: BatchView) -> Iterator[str]:
    """Why a batch has failed as a whole."""
    found = batch.errors.data if batch.errors is not None else ()
    for error in found[:_MAX_ERRORS]:
        yield f"line {error.line}: {error.message}" if error.line is not None else error.message
    if len(found) > _MAX_ERRORS:
        yield f"and {len(found) - _MAX_ERRORS:,} more errors"


def row(batch: BatchView, *, with_cached: bool) -> tuple[str, ...]:
    """The cells of a batch in the table of `batch ls`, below `titles`."""
    counts = batch.counts
    cached = ("-" if counts.cached is None else f"{counts.cached:,}",) if with_cached else ()
    status = f"{batch.status}, paused" if batch.paused else batch.status
    return (
        batch.id, status, batch.endpoint, f"{counts.total:,}", f"{counts.completed:,}", f"{counts.failed:,}", *cached,
        local_time(batch.created_at), batch.waiting_for or "-",
    )  # fmt: skip


def titles(*, with_cached: bool) -> tuple[str, ...]:
    cached = ("cached",) if with_cached else ()
    return "id", "status", "endpoint", "lines", "answered", "failed", *cached, "created", "waiting for"


def details(batch: BatchView) -> Iterator[tuple[str, str]]:
    """What `batch show` prints: names and values."""
    yield "id", batch.id
    yield "status", f"{batch.status}, paused" if batch.paused else batch.status
    if batch.waiting_for:
        yield "waiting for", batch.waiting_for
    yield "endpoint", batch.endpoint
    yield "progress", figures(batch, None, None)
    yield "created", local_time(batch.created_at)
    if batch.expires_at is not None:
        yield "expires", f"{local_time(batch.expires_at)} (window {batch.completion_window})"
    yield "input file", batch.input_file_id
    if batch.output_file_id:
        yield "output file", batch.output_file_id
    if batch.error_file_id:
        yield "error file", batch.error_file_id
    for name, value in (batch.metadata or {}).items():
        yield f"metadata {name}", value
    for error in errors(batch):
        yield "error", error


def local_time(at: int) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"
