"""The status of this process and of the others, for the dashboard, `top` and /admin/status."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from router.api.access.auth import Authenticator
from router.api.admin.batches import BatchReader
from router.api.admin.gpus import Gpus
from router.api.admin.status import HOUR, SHOWN_REQUESTS, StatusReader
from router.api.dashboard.event_hub import EventHub
from router.core.routing.prefill import PrefixIndexStatus
from router.flow.replicas.router_snapshot import ProcessLoad, take_snapshot
from router.flow.replicas.status_publisher import StatusPublisher
from router.net.redis.clock import RedisClock
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings
from router.shared.batches.batch_records import BatchRecords
from router.shared.status.router_snapshots import RouterSnapshot


class Status(NamedTuple):
    reader: StatusReader
    batches: BatchReader
    event_hub: EventHub
    publisher: StatusPublisher
    gpus: Gpus


def build_status(
    settings: Settings, process_state: ProcessState, redis: RedisLink, engines: EnginePool, auth: Authenticator,
    gpus: Gpus,
) -> Status:  # fmt: skip
    snapshot = _snapshots(settings, process_state, engines, redis.clock)
    reader = StatusReader(
        redis=redis.admin_client,
        pipeline=redis.pipeline,
        redis_writes=redis.writes,
        redis_url=settings.redis_url,
        clock=redis.clock.now,
        take_snapshot=snapshot,
        own_requests=process_state.latest_requests.kept,
        refuses_all=lambda: auth.refuses_all,
        read_gpus=gpus.read,
    )
    records = BatchRecords(redis.pipeline, clock=redis.clock.now) if settings.batch.folder else None
    batches = BatchReader(records, redis.clock.now, time.monotonic)
    event_hub = EventHub(
        reader.status, partial(reader.history, HOUR), partial(reader.latest_requests, SHOWN_REQUESTS), batches.read
    )
    publisher = StatusPublisher(
        pipeline=redis.pipeline,
        clock=redis.clock.now,
        take_snapshot=snapshot,
        pending_traffic=process_state.pending_traffic,
        requests=process_state.latest_requests,
    )
    return Status(reader, batches, event_hub, publisher, gpus)


def prefix_statuses(process_state: ProcessState) -> Callable[[str], PrefixIndexStatus]:
    return lambda engine_id: process_state.prefills.of(engine_id).status(time.perf_counter())


def _snapshots(
    settings: Settings, process_state: ProcessState, engines: EnginePool, clock: RedisClock
) -> Callable[[], RouterSnapshot]:
    """What this process is, as other routers and the status page see it."""
    drafts = configured_drafts(settings)
    prefix_status = prefix_statuses(process_state)

    def snapshot() -> RouterSnapshot:
        load = ProcessLoad(
            in_flight=process_state.in_flight(),
            queued=process_state.queue_lengths.total,
            draining=process_state.draining,
        )
        return take_snapshot(
            process_state.identity, load, engines.catalog, engines.breakers.state, drafts, prefix_status, clock.now()
        )

    return snapshot


def configured_drafts(settings: Settings) -> Mapping[str, str]:
    """The draft model, or the method of speculation without one, of each engine that has any; by the engine's name."""
    drafts = {
        engine.name: (engine.launch.draft, engine.launch.speculation_method)
        for engine in settings.engine
        if engine.launch
    }
    return {name: draft or method for name, (draft, method) in drafts.items() if method is not None}
