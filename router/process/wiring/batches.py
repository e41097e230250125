"""Files and batches, if the configuration has a folder for them."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.api.batches.turned_off import turned_off_routes
from router.api.inference.tenant_requests import TenantRequests
from router.flow.batches.leftover_folders import remove_leftover_folders
from router.flow.body_budget import BodyAllocation
from router.flow.replicas.background import Task, every
from router.net.redis.pipeline import RedisDownError
from router.process.process_state import ProcessState
from router.process.wiring.batch_files import build_files
from router.process.wiring.batch_runner import build_runner
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.gateway import GatewayParts
from router.process.wiring.redis_services import RedisServices
from router.settings import Settings
from router.shared.batches.batch_records import BatchRecords
from router.shared.batches.file_record import FolderUnusableError
from router.shared.batches.files import BatchFiles
from router.shared.quota.rate_limits import ReadLimits

_REMOVAL_INTERVAL: Final = 3600.0  # seconds
# Bytes of a line beside the body of its request: `custom_id`, `method` and `url`.
_ENVELOPE: Final = 64 << 10


class Batches(NamedTuple):
    """`tasks`: what runs in the background."""

    routes: Sequence[Route]
    tasks: Sequence[Task]


def build_batches(
    settings: Settings, process_state: ProcessState, services: RedisServices, auth: Authenticator,
    gateway: GatewayParts, engines: EnginePool,
) -> Batches:  # fmt: skip
    if not settings.batch.folder:
        return Batches(turned_off_routes(), ())
    # Imported only here: most routers have no files, and need no parser for their forms.
    from router.api.batches.batches import BatchRoutes
    from router.api.batches.file_upload import UploadLimits
    from router.api.batches.files import FileRoutes

    new_allocation = partial(BodyAllocation, process_state.body_budget, settings.router.max_bodies)
    limits = ReadLimits(process_state.tenant_limits)
    requests = TenantRequests(auth, limits, process_state.telemetry, new_allocation)
    files = build_files(settings, services)
    records = BatchRecords(services.redis.pipeline, clock=services.redis.clock.now)
    upload_limits = UploadLimits(int(settings.batch.max_file), int(settings.router.max_body) + _ENVELOPE)
    clean_up = partial(_clean_up, files, records, services.redis.clock.now)
    runner = build_runner(
        settings, process_state, records, files, gateway, engines, lambda: services.redis.pipeline.up
    )  # fmt: skip
    return Batches(
        [
            *FileRoutes(requests, files, upload_limits).routes(),
            *BatchRoutes(
                requests, records, files, max_batches=settings.batch.max_batches, clock=services.redis.clock.now
            ).routes(),
        ],
        [every(_REMOVAL_INTERVAL, clean_up), runner.run],
    )


async def _clean_up(files: BatchFiles, records: BatchRecords, clock: Callable[[], float]) -> None:
    with contextlib.suppress(FolderUnusableError, RedisDownError):  # it is logged; the next time may be better
        await files.remove_expired()
        await remove_leftover_folders(files, records, clock)
    with contextlib.suppress(RedisDownError):
        await records.remove_lost()
