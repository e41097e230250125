"""The log files of the processes that `roundhouse up` starts: kept over restarts, and bounded in size."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

KEPT: Final = 4
"""Older logs that are kept of each process: NAME.log.1 is the last one, NAME.log.4 the oldest."""

MAX_SIZE: Final = 64 << 20
"""Bytes from which on a log is rotated while its process runs."""


def rotate(log: Path) -> None:
    """Moves NAME.log to NAME.log.1, that to NAME.log.2, and so on; the oldest is removed."""
    for number in range(KEPT, 0, -1):
        source = log if number == 1 else _older(log, number - 1)
        with contextlib.suppress(FileNotFoundError):
            source.replace(_older(log, number))


def rotate_if_large(log: Path, max_size: int = MAX_SIZE) -> bool:
    """Rotates the log of a running process, which keeps its descriptor, if it is larger than `max_size` bytes.

    So the content is copied and the file then emptied; lines written between the two are lost. The process must have
    opened the file for appending. A failure leaves the log as it is: the engine matters more.
    """
    copy = _older(log, 0)
    try:
        if log.stat().st_size <= max_size:
            return False
        shutil.copyfile(log, copy)
        os.truncate(log, 0)
        for number in range(KEPT, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                _older(log, number - 1).replace(_older(log, number))
    except OSError:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
        return False
    return True


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
