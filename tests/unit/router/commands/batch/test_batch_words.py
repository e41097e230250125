"""What is said of a batch, and the exit codes."""

from typing import Any

import pytest

from router.commands.batch.batch_view import Batch, BatchView
from router.commands.batch.batch_words import details, exit_code, figures, row, stage, summary, titles
from tests.support.fake_batches import batch_state


def view(*arguments: Any, **fields: Any) -> BatchView:
    return Batch(batch_state(*arguments, **fields)).view


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (view("completed", 3, 3), 0),
        (view("completed", 3, 2, 1), 3),
        (view("failed"), 4),
        (view("expired", 3, 2), 4),
        (view("cancelled", 3, 3), 4),
        (view("of_a_later_version"), 4),
    ],
)
def test_the_exit_code_says_whether_all_lines_are_answered(batch: BatchView, code: int) -> None:
    assert exit_code(batch) == code


def test_the_figures_are_those_that_are_known() -> None:
    assert figures(view("in_progress", 1000, 410, 2), 12.34, 48) == "412 of 1,000 lines, 12.3/s, 2 failed, 48s left"
    assert figures(view("in_progress", 60, 3), 0.05, 1140) == "3 of 60 lines, 3.0/min, 19m left"
    for nothing in (None, 0.0):
        assert figures(view("in_progress", 1), nothing, None) == "0 of 1 line"


def test_lines_from_the_cache_are_counted_if_the_router_does_so() -> None:
    counts = {"total": 9, "completed": 5, "failed": 0, "cached": 4}
    cached = Batch(batch_state("completed") | {"request_counts": counts}).view
    assert figures(cached, None, None) == "5 of 9 lines, 4 from the cache"
    assert next(summary(cached)) == "batch_1 is complete: 5 of 9 lines answered, 4 of them from the cache"
    assert "4" in row(cached, with_cached=True)
    assert "-" in row(view("completed", 9, 5), with_cached=True)
    for with_cached in (True, False):
        assert len(row(cached, with_cached=with_cached)) == len(titles(with_cached=with_cached))


def test_a_batch_without_counts_has_none() -> None:
    assert Batch({"id": "b", "status": "validating", "request_counts": None}).view.counts.done == 0


def test_the_stage_says_what_the_figures_do_not() -> None:
    assert stage(view("validating")) == "the router checks the file"
    assert stage(view("in_progress")) == ""
    assert stage(view("in_progress", waiting_for="the budget of tomorrow")) == "waiting: the budget of tomorrow"
    assert stage(view("in_progress", paused=True)) == "paused; `roundhouse batch resume batch_1` resumes it"
    assert stage(view("cancelling", paused=True)) == "the batch is being cancelled"


def test_the_summary_has_the_errors_of_the_input_file() -> None:
    mistakes = [{"code": "invalid_json_line", "message": f"Mistake {n}.", "line": n or None} for n in range(12)]
    lines = list(summary(view("failed", created_at=5, failed_at=8, errors={"object": "list", "data": mistakes})))
    assert lines[0] == "batch_1 has failed in 3s: 0 of 0 lines answered"
    assert lines[1:3] == ["Mistake 0.", "line 1: Mistake 1."]
    assert lines[-1] == "and 2 more errors"


def test_the_details_leave_out_what_there_is_not() -> None:
    names = [name for name, _ in details(view("in_progress", 2))]
    assert names == ["id", "status", "endpoint", "progress", "created", "input file"]
    full = dict(details(view("completed", 2, output_file_id="o", error_file_id="e", expires_at=9, metadata={"a": "b"})))
    assert (full["output file"], full["error file"], full["metadata a"]) == ("o", "e", "b")
