"""How `roundhouse batch run` shows what happens: bars in a terminal, else a line now and then; on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from router.commands.batch.batch_view import BatchView
from router.commands.batch.batch_words import figures, stage
from router.commands.console import format_bytes, print_err, printable
from router.core.batches.progress_rate import ProgressRate

if TYPE_CHECKING:  # imported only for a terminal
    from rich.progress import Progress, TaskID

_LINE_INTERVAL: Final = 30.0
"""Seconds between two lines without a terminal, while nothing else changes."""

OnBytes = Callable[[int, int | None], None]
"""How many bytes there are so far, and of how many; None: nobody knows."""


class Display(Protocol):
    def say(self, message: str) -> None: ...

    def bytes_of(self, what: str) -> OnBytes:
        """`what` happens, such as `sending in.jsonl`."""

    def show(self, batch: BatchView, rate: ProgressRate) -> None: ...


@contextlib.contextmanager
def open_display() -> Iterator[Display]:
    if not sys.stderr.isatty():
        yield LineDisplay(print_err, time.monotonic)
        return
    from rich.console import Console  # imported here, since it would slow every command down
    from rich.progress import BarColumn, Progress, TextColumn

    # The texts are a router's: without markup.
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[words]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _BarDisplay(bars)


class LineDisplay:
    """A line when something else happens, and one every half minute."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        """`clock`: in seconds, does not go backwards."""
        self._write = write
        self._clock = clock
        self._stage: tuple[str, str] | None = None
        self._written_at = clock()

    def say(self, message: str) -> None:
        self._write(message)

    def bytes_of(self, what: str) -> OnBytes:
        self._write(what)
        self._written_at = self._clock()

        def on_bytes(done: int, total: int | None) -> None:
            if self._is_due():
                self._write(f"{what}: {_byte_words(done, total)}")

        return on_bytes

    def show(self, batch: BatchView, rate: ProgressRate) -> None:
        now = (batch.status, stage(batch))
        is_due = self._is_due()
        if batch.has_ended or (now == self._stage and not is_due):
            return
        self._stage = now
        self._write(f"{batch.id}: {progress_words(batch, rate)}")

    def _is_due(self) -> bool:
        now = self._clock()
        if now - self._written_at < _LINE_INTERVAL:
            return False
        self._written_at = now
        return True


class _BarDisplay:
    def __init__(self, bars: "Progress") -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._what = ""

    def say(self, message: str) -> None:
        self._bars.console.print(printable(message), markup=False, highlight=False)

    def bytes_of(self, what: str) -> OnBytes:
        def on_bytes(done: int, total: int | None) -> None:
            self._draw(what, done, total, _byte_words(done, total))

        return on_bytes

    def show(self, batch: BatchView, rate: ProgressRate) -> None:
        self._draw(batch.id, batch.counts.done, batch.counts.total or None, progress_words(batch, rate))

    def _draw(self, what: str, done: int, total: int | None, words: str) -> None:
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._what = what
            self._task = self._bars.add_task(printable(what), total=total, words="")
        self._bars.update(self._task, completed=done, total=total, words=printable(words))


def progress_words(batch: BatchView, rate: ProgressRate) -> str:
    """The figures once the lines are counted, and what happens besides."""
    counts = batch.counts
    runs = batch.status == "in_progress" and not batch.paused
    left = rate.seconds_left(counts.total) if runs and not batch.waiting_for else None
    words = [figures(batch, rate.per_second if runs else None, left)] if counts.total else []
    return "; ".join([*words, *([stage(batch)] if stage(batch) else [])])


def _byte_words(done: int, total: int | None) -> str:
    return format_bytes(done) if total is None else f"{format_bytes(done)} of {format_bytes(total)}"
