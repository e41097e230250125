"""Files and batches, if the configuration has a folder for them."""

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.api.batches.turned_off import turned_off_routes
from router.api.inference.tenant_requests import TenantRequests
from router.flow.body_budget import BodyAllocation
from router.flow.replicas.background import Task, every
from router.process.process_state import ProcessState
from router.process.wiring.redis_services import RedisServices
from router.settings import Settings
from router.shared.batches.file_record import FolderUnusableError
from router.shared.batches.files import BatchFiles
from router.shared.quota.rate_limits import ReadLimits

_REMOVAL_INTERVAL: Final = 3600.0  # seconds
_ENVELOPE: Final = 64 << 10
"""Bytes of a line beside the body of its request: `custom_id`, `method` and `url`."""


class Batches(NamedTuple):
    """`tasks`: what runs in the background."""

    routes: Sequence[Route]
    tasks: Sequence[Task]


def build_batches(
    settings: Settings, process_state: ProcessState, services: RedisServices, auth: Authenticator
) -> Batches:
    if not settings.batch.folder:
        return Batches(turned_off_routes(), ())
    # Imported only here: most routers have no files, and need no parser for their forms.
    from router.api.batches.file_upload import UploadLimits
    from router.api.batches.files import FileRoutes

    new_allocation = partial(BodyAllocation, process_state.body_budget, settings.router.max_bodies)
    limits = ReadLimits(process_state.tenant_limits)
    requests = TenantRequests(auth, limits, process_state.telemetry, new_allocation)
    files = build_files(settings, services)
    upload_limits = UploadLimits(int(settings.batch.max_file), int(settings.router.max_body) + _ENVELOPE)
    routes = FileRoutes(requests, files, upload_limits).routes()
    return Batches(routes, [every(_REMOVAL_INTERVAL, partial(_remove_expired, files))])


def build_files(settings: Settings, services: RedisServices) -> BatchFiles:
    return BatchFiles(
        Path(settings.batch.folder),
        max_files=settings.batch.max_files,
        ttl=settings.batch.file_ttl,
        clock=services.redis.clock.now,
    )


async def _remove_expired(files: BatchFiles) -> None:
    with contextlib.suppress(FolderUnusableError):  # it is logged; the next time may be better
        await files.remove_expired()
