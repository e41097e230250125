"""Folders of batches that nobody works on: Redis has lost the batch, or a process died after it had ended it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from router.core.batches.batch_object import ENDED
from router.shared.batches.batch_records import BatchName, BatchNotFoundError, BatchRecords
from router.shared.batches.file_folder import LEFTOVER_AGE
from router.shared.batches.files import BatchFiles

_PATTERN: Final = "*/batch_*"
_ID: Final = re.compile(r"batch_[0-9a-f]{24}")


async def remove_leftover_folders(
    files: BatchFiles, records: BatchRecords, folder: Path, clock: Callable[[], float]
) -> None:
    """Those that are a day old. `folder`: of all tenants. Raises FolderUnusableError and RedisDownError."""
    for path in await files.run(_old, folder, clock() - LEFTOVER_AGE):
        if await _is_over(records, BatchName(path.parent.name, path.name)):
            await files.run(shutil.rmtree, path, ignore_errors=True)


async def _is_over(records: BatchRecords, name: BatchName) -> bool:
    try:
        return (await records.find(name)).shown.status in ENDED
    except BatchNotFoundError:
        return True


def _old(folder: Path, before: float) -> list[Path]:
    found = []
    for path in folder.glob(_PATTERN):
        try:
            if _ID.fullmatch(path.name) and path.is_dir() and path.stat().st_mtime < before:
                found.append(path)
        except FileNotFoundError:
            continue  # its batch has ended meanwhile
    return found
