"""What runs the lines of batches in this process."""

import time
from collections.abc import Callable
from functools import partial

from router.core.batches.hours import Hours, parse_hours
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.table import ENDPOINTS
from router.flow.batches.batch_runner import BatchLimits, BatchRunner
from router.flow.batches.line_requests import LineRequests
from router.flow.batches.spare_capacity import SpareCapacity
from router.flow.body_budget import BodyAllocation
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.gateway import GatewayParts
from router.settings import Settings, tenants
from router.shared.batches.batch_records import BatchRecords
from router.shared.batches.files import BatchFiles
from router.shared.quota.rate_limits import SpareLimits


def build_runner(
    settings: Settings, process_state: ProcessState, records: BatchRecords, files: BatchFiles,
    gateway: GatewayParts, engines: EnginePool, redis_is_up: Callable[[], bool],
) -> BatchRunner:  # fmt: skip
    batch, router = settings.batch, settings.router
    handlers = {
        endpoint.path: gateway.responses if endpoint is RESPONSES else gateway.gateway for endpoint in ENDPOINTS
    }
    capacity = SpareCapacity(
        engines.catalog,
        engines.admission,
        engines.health.readiness,
        begun=engines.begun_lines,
        max_in_flight=batch.max_in_flight,
        max_kv_usage=batch.max_kv_usage,
        is_open=partial(_is_open, parse_hours(batch.hours), redis_is_up),
    )
    requests = LineRequests(
        handlers,
        SpareLimits(process_state.tenant_limits),
        partial(BodyAllocation, process_state.body_budget, router.max_bodies),
        process_state.telemetry.record,
        capacity.is_spare,
    )
    limits = BatchLimits(batch.max_lines, int(router.max_body), batch.max_in_flight)
    return BatchRunner(
        records, files, requests, capacity, limits, tenants(settings), lambda: process_state.draining,
        process_state.telemetry,
    )  # fmt: skip


def _is_open(hours: Hours | None, redis_is_up: Callable[[], bool]) -> bool:
    # Else the answer could not be stored.
    if not redis_is_up():
        return False
    now = time.localtime()
    return hours is None or hours.has(now.tm_hour, now.tm_min)
