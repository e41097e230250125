"""Folders of batches that nobody works on: Redis has lost the batch, or a process died after it had ended it."""

import re
from collections.abc import Callable
from typing import Final

from router.core.batches.batch_object import ENDED
from router.shared.batches.batch_records import BatchName, BatchNotFoundError, BatchRecords
from router.shared.batches.file_folder import LEFTOVER_AGE
from router.shared.batches.files import BatchFiles
from router.shared.batches.storage import Storage

_ID: Final = re.compile(r"batch_[0-9a-f]{24}")


async def remove_leftover_folders(files: BatchFiles, records: BatchRecords, clock: Callable[[], float]) -> None:
    """Those that are a day old. Raises FolderUnusableError and RedisDownError."""
    for name in await files.run(_old, files.storage, clock() - LEFTOVER_AGE):
        if await _is_over(records, name):
            await files.run(files.storage.remove_folder, f"{name.tenant}/{name.id}")


async def _is_over(records: BatchRecords, name: BatchName) -> bool:
    try:
        return (await records.find(name)).shown.status in ENDED
    except BatchNotFoundError:
        return True


def _old(storage: Storage, before: float) -> list[BatchName]:
    return [
        BatchName(tenant, id_)
        for tenant in storage.folders("")
        for id_ in storage.folders(tenant)
        if _ID.fullmatch(id_) and storage.changed_at(f"{tenant}/{id_}") < before
    ]
