"""`roundhouse reload`: makes a running router read its configuration again, and says what came of it."""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from router.commands.console import EXIT_USAGE, ConfigOption, JsonOption, fail, load_settings, print_err, write_json
from router.process.pid_file import pid_file_path, running_pid, running_routers
from router.settings import DEFAULT_PATH
from router.shared.audit.actors import command_line_actor

_POLL_INTERVAL: Final = 0.05  # seconds


def reload(
    config: ConfigOption = Path(DEFAULT_PATH),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The router's port, if it was started with --port.")
    ] = None,
    pid_file: Annotated[
        Path | None, typer.Option(help="The router's pid file, if not that of the configuration.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, max=3600, help="Seconds to wait for the outcome.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Make a running router read its configuration again, and wait for the outcome."""
    # If the configuration is needed, what is wrong with it is printed, and the router is left alone.

    def write_mistakes(mistakes: Sequence[str]) -> None:
        if as_json:
            write_json({"reloaded": False, "pid": None, "lines": mistakes})

    path = pid_file.absolute() if pid_file is not None else pid_file_path(load_settings(config, write_mistakes), port)
    try:
        with _one_at_a_time(path.parent):
            _reload(path, timeout, as_json=as_json)
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def _reload(path: Path, timeout: float, *, as_json: bool) -> None:
    pid = running_pid(path)
    if pid is None:
        running = ", ".join(map(str, running_routers(path.parent)))
        others = f"; these run: {running} (--pid-file)" if running else "; does it run on this machine?"
        fail(f"no router runs with {path}{others}")
    from router.process.reloading import actor_file, read_outcome

    outcome_file = path.with_suffix(".reload")
    before = read_outcome(outcome_file)
    with _said_who(actor_file(outcome_file)):
        try:
            os.kill(pid, signal.SIGHUP)
        except ProcessLookupError:
            fail(f"process {pid} of {path} has just stopped")
        deadline = time.monotonic() + timeout
        while (outcome := read_outcome(outcome_file)) == before or outcome is None:
            if running_pid(path) != pid:
                fail(f"process {pid} stopped before it had reloaded")
            if time.monotonic() >= deadline:
                fail(f"process {pid} has not reloaded within {timeout:g} s; its log may say why")
            time.sleep(_POLL_INTERVAL)
    if as_json:
        write_json({"reloaded": outcome.is_in_effect, "pid": pid, "lines": outcome.lines})
    for line in outcome.lines:
        print_err(f"roundhouse: {line}")
    if not outcome.is_in_effect:
        fail(f"not reloaded: the previous configuration stays in effect (process {pid})")
    if not as_json:
        typer.echo(f"reloaded: the new configuration is in effect (process {pid})")


@contextlib.contextmanager
def _said_who(file: Path) -> Iterator[None]:
    """Tells the router, for its audit, who runs this command. It reads that before it reloads."""
    with contextlib.suppress(OSError):  # the folder may be another user's; the audit then has the signal alone
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(file, flags, 0o644), "w", encoding="utf-8") as text:
            text.write(command_line_actor())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Outcomes have no addressee, so that of another command must not be taken for this one's."""
    if not folder.is_dir():
        fail(f"no router runs with the directory {folder}", EXIT_USAGE)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
