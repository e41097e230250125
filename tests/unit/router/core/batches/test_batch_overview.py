"""What administrators see of a batch."""

from typing import Any

import pytest

from router.core.batches.batch_object import BatchObject, RequestCounts
from router.core.batches.batch_overview import batch_row, open_state
from router.core.batches.progress_rate import ProgressRate


def batch(status: Any = "in_progress", **fields: Any) -> BatchObject:
    return BatchObject(
        id="batch_1", endpoint="/v1/embeddings", input_file_id="file-1", completion_window="24h", status=status,
        created_at=1000, expires_at=87_400, metadata={"secret": "plan"},
        request_counts=RequestCounts(total=100, completed=38, failed=2, cached=19), **fields,
    )  # fmt: skip


def rate() -> ProgressRate:
    found = ProgressRate()
    found.add(10, 0)
    found.add(30, 40)
    return found


def test_a_row_says_how_far_a_batch_is_and_how_long_the_rest_takes() -> None:
    row = batch_row("acme", batch(), rate())
    assert (row.tenant, row.total, row.completed, row.failed, row.cached) == ("acme", 100, 38, 2, 19)
    assert (row.lines_per_second, row.seconds_left, row.ended_at) == (2, 30, None)
    assert not hasattr(row, "metadata")
    assert not hasattr(row, "input_file_id")


@pytest.mark.parametrize(
    "shown", [batch("validating"), batch("finalizing"), batch("cancelling"), batch(paused=True), batch("completed")]
)
def test_no_time_is_left_to_say_while_no_line_runs(shown: BatchObject) -> None:
    row = batch_row("acme", shown, rate())
    assert (row.lines_per_second, row.seconds_left) == (None, None)


def test_no_time_is_left_to_say_for_a_batch_that_waits_for_the_next_day() -> None:
    row = batch_row("acme", batch(waiting_for="A budget."), rate())
    assert (row.lines_per_second, row.seconds_left) == (2, None)


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_a_batch_that_has_ended_says_when(status: str) -> None:
    assert batch_row("acme", batch(status, **{f"{status}_at": 2000})).ended_at == 2000


@pytest.mark.parametrize(
    ("status", "paused", "waiting", "limited", "is_open", "state"),
    [
        ("validating", False, False, False, True, "validating"),
        ("validating", True, False, False, True, "paused"),
        ("in_progress", False, False, False, True, "running"),
        ("in_progress", False, True, False, True, "waiting"),
        ("in_progress", False, True, True, True, "limited"),
        ("in_progress", False, True, True, False, "outside_hours"),
        ("in_progress", False, True, False, False, "outside_hours"),
        ("in_progress", True, True, False, False, "paused"),
        ("finalizing", False, False, False, False, "finalizing"),
        ("cancelling", False, False, False, True, "cancelling"),
        ("completed", False, False, False, True, None),
    ],
)
def test_an_open_batch_has_one_state(
    status: str, paused: bool, waiting: bool, limited: bool, is_open: bool, state: Any
) -> None:
    assert open_state(status, paused=paused, waiting=waiting, limited=limited, is_open=is_open) == state
