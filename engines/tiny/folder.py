"""The folder of models: either whole, with a marker that says which version, or not there at all."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARKER = "roundhouse-models.json"


class ForeignFolderError(Exception):
    """The folder holds something that was not made here, and is left alone."""


def is_complete(folder: Path, version: str) -> bool:
    """Whether `folder` holds all models of this version."""
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("version") == version


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Hold the right to make `folder`; whoever comes second waits here until the first has done or died."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_replace(folder: Path, version: str) -> Iterator[Path]:
    """Give a new folder to fill; once it is filled, mark it with `version` and put it in the place of `folder`.

    If filling fails, what was there before stays as it was, and nothing of the new one is left.
    Raises ForeignFolderError if what is there was not made here.
    """
    if folder.exists() and not (folder.is_dir() and ((folder / MARKER).is_file() or not any(folder.iterdir()))):
        raise ForeignFolderError(f"{folder} holds something else than models made here: name another folder")
    making = Path(tempfile.mkdtemp(prefix=f".{folder.name}.making-", dir=folder.parent))
    try:
        yield making
        (making / MARKER).write_text(json.dumps({"version": version}) + "\n")
        making.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(making, folder)  # noqa: PTH104 - the system call that is meant
    finally:
        shutil.rmtree(making, ignore_errors=True)
