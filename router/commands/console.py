"""What all commands share: their output, their errors, and loading the configuration."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NoReturn

import msgspec
import typer

from router.commands.termination import exit_if_ended
from router.core.printable import escape_unprintable
from router.settings import ConfigurationError, Settings, load, load_access

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

STDIO: Final = Path("-")
"""Standard input or output, as the argument of a command."""

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", envvar="ROUNDHOUSE_CONFIG", help="Configuration file.", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object, in one line.")]
VllmPythonOption = Annotated[Path | None, typer.Option(help="Python interpreter with vLLM installed, if not this one.")]
EngineKindOption = Annotated[
    str,
    typer.Option("--engines", help="Engines to run: auto, vllm or simulator; auto uses vLLM if it is installed."),
]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print a JSON object for each item, one a line.")]


def print_err(message: str) -> None:
    """Writes a message for people; standard output is for the command's result.

    A message may have a text of Redis or an engine.
    """
    typer.echo(printable(message), err=True)


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    print_err(f"roundhouse: {' '.join(message.split())}")
    raise typer.Exit(code)


def confirm(question: str) -> bool:
    """Asks at the terminal; anything but yes is no. typer.confirm would also write to standard output."""
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    exit_if_ended()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def load_settings(config: Path, on_mistakes: Callable[[Sequence[str]], None] = lambda _: None) -> Settings:
    """Loads the configuration; if it cannot be used, the command ends with a line for each mistake.

    `on_mistakes` gets them before.
    """
    try:
        return load(config)
    except ConfigurationError as error:
        on_mistakes(error.mistakes)
        _fail_with(error)


def load_access_settings(config: Path) -> Settings:
    """As `load_settings`, but only what is needed to ask a running router; see `load_access`."""
    try:
        return load_access(config)
    except ConfigurationError as error:
        _fail_with(error)


def _fail_with(error: ConfigurationError) -> NoReturn:
    for mistake in error.mistakes:
        print_err(f"roundhouse: {mistake}")
    raise typer.Exit(EXIT_USAGE) from None


def output_problem(write: Callable[[], None]) -> str | None:
    """Writes to standard output; returns why it does not take it: a full disk, a closed pipe. None if it does."""
    if sys.stdout is None:  # as after `>&-`
        return "standard output: it is closed"
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            # Else Python tries to write the rest at its end, and prints an error of its own.
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return f"standard output: {error.strerror}"
    return None


@contextlib.contextmanager
def open_output(file: Path) -> Iterator[BinaryIO]:
    """A file that appears only when it is complete, and that only its owner can read."""
    if file == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if file.exists() and not file.is_file():  # a device or a pipe must not be replaced by a file
        with file.open("wb") as stream:
            yield stream
        return
    part = file.with_name(f"{file.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            yield stream
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def write_json(value: Any) -> None:
    typer.echo(msgspec.json.encode(value))


def printable(text: str) -> str:
    """Without control characters but those of lines and tabs: a response may have any, and a terminal acts on them."""
    return escape_unprintable(text, keep="\n\t")


def write_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Writes aligned columns; the first row has their titles. The last column is not padded."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # imported here, since it would slow every command down
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}: {task.completed:,.0f}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done: bar.update(task, completed=done)


def format_bytes(byte_count: float | None) -> str:
    if byte_count is None:
        return "?"
    for unit in ("B", "KiB", "MiB"):
        if byte_count < 1024:
            return f"{byte_count:.0f} {unit}" if unit == "B" else f"{byte_count:.1f} {unit}"
        byte_count /= 1024
    return f"{byte_count:.1f} GiB"


def format_duration(seconds: float | None) -> str:
    """A duration in the largest unit that gives at least 2; None: `?`."""
    if seconds is None:
        return "?"
    seconds = max(0.0, seconds)  # the process that wrote the time may have a clock that is ahead
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def check_engine_kind(kind: str) -> str:
    """The value of EngineKindOption. Exits if it is invalid."""
    if kind not in ("auto", "vllm", "simulator"):
        fail(f"--engines: expected auto, vllm or simulator, got {kind!r}", EXIT_USAGE)
    return kind
