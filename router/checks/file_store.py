"""Asks the object store of files and batches whether it can be used."""

import asyncio
from typing import Final

from router.checks.finding import Finding, Problem, wrong
from router.settings import Settings, is_url, missing_extra
from router.shared.batches.file_threads import FileThreads

_WHAT: Final = "folder of files"
_SETTING: Final = "batch.folder"
_FIX: Final = 'see "Object stores" in docs/batches.md: the bucket, credentials in the environment, AWS_ENDPOINT_URL'


async def check_file_store(settings: Settings, *, timeout: float) -> list[Finding]:
    """`timeout` in seconds. Lists the folder, and writes nothing."""
    folder = settings.batch.folder
    if not is_url(folder) or missing_extra(settings) is not None:
        return []
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().run_in_executor(FileThreads(1), _list, folder)
    except TimeoutError:
        return [wrong(_WHAT, _SETTING, Problem(f"the object store does not answer within {timeout:g} s", _FIX))]
    except OSError as error:
        return [wrong(_WHAT, _SETTING, Problem(f"the object store cannot be used: {error}", _FIX))]
    return [Finding(_WHAT, "the object store can be listed")]


def _list(url: str) -> None:
    # Imported only here: it needs an extra.
    from router.shared.batches.object_storage import ObjectStorage

    ObjectStorage.at(url).folders("")
