"""`roundhouse engines logs`: the output of a process that `roundhouse up` started."""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from router.commands.console import EXIT_USAGE, ConfigOption, fail, load_settings
from router.settings import DEFAULT_PATH, Settings

POLL_INTERVAL: Final = 0.25
"""Seconds between two looks at a log that is followed."""

_OTHER_PROCESSES: Final = ("router", "redis")
_CHUNK: Final = 64 << 10


def logs(
    name: Annotated[str, typer.Argument(help="Engine name, or `router` or `redis`.")],
    config: ConfigOption = Path(DEFAULT_PATH),
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="Print the last N lines.")] = 100,
) -> None:
    """Show the log of an engine, the router or Redis, as started by `roundhouse up`."""
    settings = load_settings(config)
    log = _log_path(settings, name, config)
    try:
        with log.open("rb") as file:
            last_lines = deque(file, lines)
            position = file.tell()
    except FileNotFoundError:
        fail(f"{log}: no such file; `roundhouse up` writes it, in the folder where it runs")
    typer.echo(b"".join(last_lines), nl=False)
    if follow:
        try:
            for data in _follow(log, position):
                typer.echo(data, nl=False)
        except KeyboardInterrupt:
            return


def _log_path(settings: Settings, name: str, config: Path) -> Path:
    names = [engine.name for engine in settings.engine if engine.launch is not None]
    if name not in (*names, *_OTHER_PROCESSES):
        known = ", ".join((*names, *_OTHER_PROCESSES))
        fail(f"{config}: {name!r} is not started by `roundhouse up`; it starts {known}", EXIT_USAGE)
    folder = Path(settings.router.state) / "logs"
    # After a switch, the engine's process is called NAME@2, see engines.fleet.
    logs = [folder / f"{name}.log", *folder.glob(f"{name}@*.log")]
    return max(logs, key=_written_at)


def _written_at(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _follow(log: Path, position: int) -> Iterator[bytes]:
    """What is written to a log from `position` on, also after it is replaced by a new one or emptied."""
    file = log.open("rb")
    file.seek(position)
    while True:
        while data := file.read(_CHUNK):
            yield data
        time.sleep(POLL_INTERVAL)
        try:
            status = log.stat()
        except FileNotFoundError:  # between the two steps of a rotation
            continue
        if status.st_ino != os.fstat(file.fileno()).st_ino:
            while data := file.read(_CHUNK):  # the rest of the old one
                yield data
            file.close()
            file = log.open("rb")
        elif status.st_size < file.tell():
            file.seek(0)
