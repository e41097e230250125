"""Where files and batches are kept, as the configuration says."""

from pathlib import Path

from router.process.wiring.redis_services import RedisServices
from router.settings import Settings, is_url
from router.shared.batches.files import BatchFiles
from router.shared.batches.local_storage import LocalStorage
from router.shared.batches.storage import Storage


def build_files(settings: Settings, services: RedisServices) -> BatchFiles:
    return BatchFiles(
        _open_storage(settings.batch.folder),
        max_files=settings.batch.max_files,
        ttl=settings.batch.file_ttl,
        clock=services.redis.clock.now,
    )


def _open_storage(folder: str) -> Storage:
    if not is_url(folder):
        return LocalStorage(Path(folder))
    # Imported only here: it needs an extra.
    from router.shared.batches.object_storage import ObjectStorage

    return ObjectStorage.at(folder)
