"""Progress output while models are made: bars on a terminal, else one line per stage."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO

from engines.tiny.training import ReportProgress

if TYPE_CHECKING:
    import rich.progress

Stage = Callable[[str], AbstractContextManager[ReportProgress]]
"""Opens a stage of the work by its name; yields the callback for its progress."""


@contextmanager
def progress(stream: TextIO) -> Iterator[Stage]:
    """Shows stages on `stream`: bars on a terminal if rich is installed, plain lines otherwise."""
    if stream.isatty():
        try:
            import rich.progress
        except ImportError:
            pass
        else:
            from rich.console import Console

            with rich.progress.Progress(
                rich.progress.TextColumn("{task.description:<22}"),
                rich.progress.BarColumn(),
                rich.progress.TaskProgressColumn(),
                rich.progress.TimeElapsedColumn(),
                rich.progress.TextColumn("{task.fields[loss]}"),
                console=Console(file=stream),
            ) as bars:
                yield lambda name: _bar(bars, name)
            return
    yield lambda name: _lines(stream, name)


@contextmanager
def _bar(bars: "rich.progress.Progress", name: str) -> Iterator[ReportProgress]:
    task = bars.add_task(name, total=1.0, loss="")

    def report(done: float, loss: float) -> None:
        bars.update(task, completed=done, loss=f"loss {loss:.2f}" if loss else "")

    yield report


@contextmanager
def _lines(stream: TextIO, name: str) -> Iterator[ReportProgress]:
    started = time.monotonic()
    last = 0.0

    def report(done: float, loss: float) -> None:
        nonlocal last
        last = loss

    stream.write(f"{name} ...\n")
    stream.flush()
    yield report
    loss = f", loss {last:.2f}" if last else ""
    stream.write(f"{name}: {time.monotonic() - started:.0f} s{loss}\n")
    stream.flush()
