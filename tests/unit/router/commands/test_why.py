"""The screen of `roundhouse why`."""

from typing import Any

from router.commands.why import screen
from router.shared.status.request_explanation import explain
from router.shared.status.status_documents import AttemptRow, ExplainedRow
from tests.support.status_factory import request_row


def explained(**fields: Any) -> ExplainedRow:
    return explain(request_row(**fields))


def test_lines_of_one_name_are_below_each_other_and_times_are_aligned() -> None:
    attempts = (AttemptRow(engine="e1", result="timeout", ms=30_000.4), AttemptRow(engine="e2", result="ok"))
    row = explained(times={"lookup_ms": 0.41, "queue_ms": 1203.1}, attempts=attempts)
    assert list(screen(row))[4:] == [
        "  time            0.41 ms  for the lookup in Redis",
        "              1,203.10 ms  in the router's queue, for a slot at an engine",
        "  engines   e1: timeout after 30,000 ms",
        "            e2: ok",
        "  next      1 attempt failed: docs/runbooks.md, “Engine down”, and the engine's log.",
    ]


def test_a_router_of_an_earlier_version_sends_no_words_and_the_screen_is_the_same() -> None:
    row = explained(times={"lookup_ms": 0.41})
    without = ExplainedRow(**{name: getattr(row, name) for name in row.__struct_fields__ if name != "words"})
    assert list(screen(without)) == list(screen(row))
