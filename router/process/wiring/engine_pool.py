"""The engines of one configuration: what is known of them, and which one gets a request."""

import time
from typing import NamedTuple, get_args

from router.core.endpoints.requests.cache_salt import sharing_group_name
from router.flow.attempts.admission import Admission
from router.flow.attempts.continuation.continuation_engines import ContinuationEngines
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.attempts.waking import WakeResult, Waking
from router.flow.batches.begun_lines import BegunLines
from router.net.redis.pipeline import RedisPipeline
from router.process.process_state import ProcessState
from router.settings import Settings, groups
from router.shared.engines.breakers import Breakers
from router.shared.engines.start_times import StartTimes
from router.telemetry.telemetry import Telemetry
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.configured_catalog import build_catalog
from router.upstream.model_lists import AdapterRefresh, ModelListReader


class EnginePool(NamedTuple):
    catalog: Catalog
    client: EngineClient
    breakers: Breakers
    health: EngineHealth
    admission: Admission
    continuation_engines: ContinuationEngines
    waking: Waking
    selector: EngineSelector
    begun_lines: BegunLines
    model_lists: ModelListReader
    adapter_refresh: AdapterRefresh


def build_engine_pool(
    settings: Settings,
    process_state: ProcessState,
    pipeline: RedisPipeline,
    breakers: Breakers,
    old: tuple[Settings, Catalog] | None,
) -> EnginePool:
    """`old`: those of the configuration that this one replaces. The same engines keep what is known of them."""
    catalog = build_catalog(settings, old, process_state.slots)
    for engine in catalog.engines.values():
        process_state.transport.prepare(engine.target("/").origin)
    client = EngineClient(process_state.transport, connect_timeout=settings.timeouts.connect)
    health = EngineHealth(breakers)
    admission = Admission(
        catalog,
        readiness=health.readiness,
        queue_timeout=settings.timeouts.queue,
        set_queue_length=process_state.queue_lengths.reporter(),
    )
    model_lists = ModelListReader(catalog, client)
    return EnginePool(
        catalog=catalog,
        client=client,
        breakers=breakers,
        health=health,
        admission=admission,
        continuation_engines=ContinuationEngines(catalog, admission),
        waking=_build_waking(catalog, admission, health, pipeline, process_state.telemetry),
        selector=_build_selector(settings, process_state, catalog),
        begun_lines=BegunLines(),
        model_lists=model_lists,
        adapter_refresh=AdapterRefresh(catalog, model_lists),
    )


def _build_selector(settings: Settings, process_state: ProcessState, catalog: Catalog) -> EngineSelector:
    return EngineSelector(
        catalog,
        process_state.draft_stats,
        process_state.prefills,
        process_state.prompt_records,
        exploration_rate=settings.router.explore,
        clock=time.perf_counter,
        random=process_state.random,
        affinity_names={name: sharing_group_name(name, group) for name, group in groups(settings).items()},
    )


def _build_waking(
    catalog: Catalog, admission: Admission, health: EngineHealth, pipeline: RedisPipeline, telemetry: Telemetry
) -> Waking:
    for model in catalog.models:
        if model.wake is not None:
            telemetry.expect_wakes(model.name, get_args(WakeResult))
    return Waking(
        catalog,
        admission,
        readiness=health.readiness,
        breaker_state=health.breakers.state,
        start_times=StartTimes(pipeline),
        record=telemetry.record_wake,
    )
