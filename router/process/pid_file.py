"""The file with a router's process id, by which `roundhouse reload` finds it.

Theory of operation. The router holds a lock on the file (flock) for as long as it runs, and the kernel releases it
however the process ends. So a file without a lock is a stale one, whoever has its process id by now. A process that
takes the lock has to look whether its file is still the one at the path: another may have removed that between.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from router.settings import Settings

_NAMES: Final = "router-*.pid"
_MAX_PID_LENGTH: Final = 20


def pid_file_path(settings: Settings, port: int | None = None) -> Path:
    """In the state directory, with the port, so that several routers may share the directory."""
    if settings.router.pid_file is not None:
        return Path(settings.router.pid_file).absolute()
    return Path(settings.router.state).resolve() / f"router-{port or settings.router.port}.pid"


class PidFile:
    """The file of this process. Leave the context to remove it."""

    def __init__(self, path: Path) -> None:
        """Writes the file; removes those that others have left behind beside it. Raises OSError."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in path.parent.glob(_NAMES):
            if other != path:
                _remove_if_stale(other)
        self._file = _take(path)
        os.truncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Removes the file while it is still locked, so that no other can be removed in its place."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)


def running_pid(path: Path) -> int | None:
    """The process id in the file; None if there is no file, or its router does not run. Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(file, _MAX_PID_LENGTH).strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(file)
    return None


def running_routers(folder: Path) -> list[Path]:
    """The pid files of the routers that run with this state directory."""
    return [path for path in sorted(folder.glob(_NAMES)) if running_pid(path) is not None]


def _take(path: Path) -> int:
    """A locked file at the path. Raises BlockingIOError if another router holds it, and OSError."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(path)):  # noqa: PTH116 - beside fstat
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _remove_if_stale(path: Path) -> None:
    with contextlib.suppress(OSError):  # its router runs, or another process removes it
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            path.with_suffix(".reload").unlink(missing_ok=True)
        finally:
            os.close(file)
