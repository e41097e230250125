"""The files in which the worker processes of a router share their metrics.

prometheus_client has a file for each process and kind of metric, `KIND_PID.db`, and reads those of all processes. It
grows a file without allocating its blocks.
"""

import os
import sys
from pathlib import Path
from typing import Final

from router.disk_blocks import allocate

FILE_SIZES: Final = {
    "counter": 256 << 10,
    "histogram": 512 << 10,
    "gauge_livemax": 64 << 10,
    "gauge_livemin": 64 << 10,
    "gauge_livemostrecent": 64 << 10,
    "gauge_livesum": 64 << 10,
}
"""Bytes of the files; three models and one tenant need 5 KB, 72 KB, and 4 KB for gauges."""

_FILES: Final = "*_*.db"
_KEPT: Final = ("counter", "histogram")
_HEADER: Final = 4  # bytes: how many are in use
_EMPTY: Final = 8  # bytes of a file without values; prometheus_client cannot read a shorter one


def prepare_metrics(directory: Path) -> None:
    """To be called by a worker before it creates its metrics. Raises OSError if the disk is full; nothing is left then.

    Removes the gauges of dead workers, which prometheus_client would go on adding to those of live ones. Their counters
    stay. A dead worker is replaced, so each worker does this when it starts.
    """
    for path in directory.glob(_FILES):
        if not _is_of_live_process(path):
            if path.name.startswith(_KEPT):
                _drop_unused(path)
            else:
                path.unlink(missing_ok=True)
    own = {directory / f"{kind}_{os.getpid()}.db": size for kind, size in FILE_SIZES.items()}
    try:
        for path, size in own.items():
            _allocate(path, size)
    except OSError:
        for path in own:
            path.unlink(missing_ok=True)
        raise


def _allocate(path: Path, size: int) -> None:
    """Creates the file with its size, or enlarges it if a process of the same number has left it."""
    new = path if path.exists() else path.with_suffix(".new")  # another process cannot read an empty file of metrics
    file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        allocate(file, size)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def _drop_unused(path: Path) -> None:
    with path.open("rb") as file:
        used = int.from_bytes(file.read(_HEADER), sys.byteorder)
    os.truncate(path, max(used, _EMPTY))  # a worker that died in its start has not written the header


def has_live_worker(directory: Path) -> bool:
    """Whether a process of those whose metrics are there still runs."""
    return any(map(_is_of_live_process, directory.glob(_FILES)))


def _is_of_live_process(path: Path) -> bool:
    try:
        os.kill(int(path.stem.rpartition("_")[2]), 0)
    except OSError:  # there is none, or the pid belongs to another user's process by now
        return False
    return True
