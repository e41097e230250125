"""The folder of models: either complete, with a marker that names the version, or absent."""

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
    """The folder contains something that was not made here; it is not touched."""


def is_complete(folder: Path, version: str) -> bool:
    """Whether `folder` contains all models of this version."""
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("version") == version


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Holds the lock for building `folder`; a second process waits here until the first has finished or died."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_replace(folder: Path, version: str) -> Iterator[Path]:
    """Yields a new folder to fill; afterwards marks it with `version` and replaces `folder` with it.

    If filling fails, the old folder stays unchanged and the new one is removed.
    Raises ForeignFolderError if the existing folder was not made here.
    """
    if folder.exists() and not (folder.is_dir() and ((folder / MARKER).is_file() or not any(folder.iterdir()))):
        raise ForeignFolderError(f"{folder} has files that are not models made by this tool; choose another folder")
    # In the same parent folder: a rename is atomic only within one file system.
    new_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}.making-", dir=folder.parent))
    try:
        yield new_folder
        (new_folder / MARKER).write_text(json.dumps({"version": version}) + "\n")
        new_folder.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(new_folder, folder)  # noqa: PTH104 - the atomic system call itself
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)
