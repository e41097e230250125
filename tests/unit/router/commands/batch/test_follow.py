"""Waiting for the end of a batch, on a clock of the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.commands.batch.api_client import ApiClient, ApiClientError, PassingError
from router.commands.batch.batch_view import Batch, BatchView
from router.commands.batch.follow import Waiting, fetch, follow
from router.commands.batch.progress_display import LineDisplay, progress_words
from router.core.batches.progress_rate import ProgressRate
from tests.support.fake_batches import BATCH_ID, batch_state


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


class ScriptedClient(ApiClient):
    """Its answers are those of the test; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("http://unused", None)
        self._answers = list(answers)

    def find(self, id_: str) -> Batch:
        assert id_ == BATCH_ID
        return Batch(self._next())

    def fetch(self, id_: str, write: Callable[[bytes], object], on_bytes: Callable[[int, int | None], None]) -> None:
        write(b"the beginning")
        write(self._next())

    def _next(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Followed:
    def __init__(self, *answers: Any) -> None:
        self.clock = Clock()
        self.lines: list[str] = []
        self.seen: list[str] = []
        self.client = ScriptedClient(*answers)
        self.display = LineDisplay(self.lines.append, self.clock)
        self.waiting = Waiting(self.clock, self.clock.sleep)

    def run(self) -> BatchView:
        with self.client:
            return follow(self.client, BATCH_ID, self.display, self._on_look, self.waiting).view

    def _on_look(self, batch: Batch) -> None:
        self.seen.append(batch.view.status)


def test_each_stage_is_a_line_and_the_end_none() -> None:
    followed = Followed(
        batch_state("validating"), batch_state("in_progress", 10), batch_state("in_progress", 10, 5),
        batch_state("in_progress", 10, 5, waiting_for="a budget"), batch_state("finalizing", 10, 10),
        batch_state("completed", 10, 10),
    )  # fmt: skip
    assert followed.run().status == "completed"
    assert followed.lines == [
        "batch_1: the router checks the file",
        "batch_1: 0 of 10 lines",
        "batch_1: 5 of 10 lines, 12.5/s; waiting: a budget",
        "batch_1: 10 of 10 lines; the router writes the results",
    ]
    assert followed.seen[-1] == "completed"


def test_a_pause_does_not_slow_the_rate() -> None:
    paused = [batch_state("in_progress", 100, 10, paused=True)] * 20
    after = [batch_state("in_progress", 100, done, waiting_for="x" * done) for done in (10, 20)]
    followed = Followed(batch_state("in_progress", 100, 10), *paused, *after, batch_state("completed", 100, 100))
    followed.run()
    assert followed.lines[2].startswith("batch_1: 10 of 100 lines; waiting")
    assert followed.lines[3].startswith(f"batch_1: 20 of 100 lines, {10 / followed.clock.sleeps[-2]:,.1f}/s")


def test_a_long_wait_has_a_line_each_half_minute_and_few_requests() -> None:
    states = [batch_state("in_progress", 1000, done) for done in range(100)]
    followed = Followed(*states, batch_state("completed", 1000, 1000))
    followed.run()
    assert followed.clock.sleeps[0] < 0.5
    assert followed.clock.sleeps[-1] == 5
    assert len(followed.lines) == pytest.approx(1 + followed.clock.now / 30, abs=2)


def test_a_router_that_does_not_answer_is_waited_for() -> None:
    down = PassingError("the router does not answer (ConnectError)")
    full = PassingError("the router answers with status 429", retry_after=20)
    followed = Followed(batch_state("in_progress", 2), down, down, full, batch_state("completed", 2, 2))
    assert followed.run().status == "completed"
    assert followed.lines[1:] == [f"{down}; waiting for it", f"{full}; waiting for it", "it answers again"]
    assert followed.clock.sleeps[-1] == 20


def test_what_waiting_does_not_mend_ends_it() -> None:
    with pytest.raises(ApiClientError, match="gone"):
        Followed(batch_state("in_progress", 2), ApiClientError("gone")).run()


def test_results_that_break_off_are_fetched_from_their_beginning(tmp_path: Path) -> None:
    followed = Followed(PassingError("it broke off"), b", the end")
    out = tmp_path / "out"
    fetch(followed.client, "file-1", out, followed.display, followed.waiting)
    assert out.read_bytes() == b"the beginning, the end"
    assert list(tmp_path.iterdir()) == [out]


def test_results_that_cannot_be_fetched_leave_no_file(tmp_path: Path) -> None:
    followed = Followed(ApiClientError("gone"))
    with pytest.raises(ApiClientError):
        fetch(followed.client, "file-1", tmp_path / "out", followed.display, followed.waiting)
    assert list(tmp_path.iterdir()) == []


def test_without_a_file_of_results_that_of_an_earlier_run_is_emptied(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"of an earlier run")
    fetch(Followed().client, None, out, Followed().display, Waiting())
    assert out.read_bytes() == b""


def test_a_batch_that_is_paused_has_neither_rate_nor_time_left() -> None:
    rate = ProgressRate()
    rate.add(0, 0)
    rate.add(10, 5)
    words = progress_words(Batch(batch_state("in_progress", 10, 5, paused=True)).view, rate)
    assert words == "5 of 10 lines; paused; `roundhouse batch resume batch_1` resumes it"
