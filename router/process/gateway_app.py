"""Creates the objects between a request and the cache and the engines, and connects them; app.py creates all others."""

import time
from functools import partial
from typing import NamedTuple

from router.api.response_headers import ResponseHeaders
from router.core.cache.miss_reason import SeenKeys
from router.core.cache.redis_keys import tracked_prefixes
from router.core.endpoints.requests.cache_salt import derive_salts
from router.core.resilience.engine_losses import Suspects
from router.flow.attempts.admission import Admission
from router.flow.attempts.candidates import build_candidates
from router.flow.attempts.continuation_engines import ContinuationEngines
from router.flow.attempts.dispatch import build_dispatcher
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import EngineRequests, engine_timeouts
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.attempts.waking import Waking
from router.flow.cache_lookup import CacheLookup
from router.flow.gateway import Gateway
from router.flow.generation import record_generation
from router.flow.heartbeat import Heartbeats
from router.flow.lookup import cache_policy
from router.flow.replicas.background import BackgroundServices
from router.flow.replicas.invalidation import InvalidationHandler, on_purge
from router.flow.request_resolver import RequestResolver
from router.flow.response_storage import ResponseStorage
from router.flow.sharing.abandonment import abandon_limits
from router.flow.sharing.coalescer import Coalescer
from router.flow.tenant_rules import TenantRules
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.listener import Listener
from router.net.redis.liveness import Liveness
from router.net.redis.pipeline import RedisPipeline
from router.net.redis.url import parse_redis_url
from router.settings import Settings, groups, tenants
from router.shared.cache.hit_counter import HitCounter
from router.shared.cache.local_hits import LocalHits
from router.shared.cache.purges import Purges
from router.shared.cache.retention import WorthRetention
from router.shared.connection.redis_writes import RedisWrites
from router.shared.connection.rights_report import RightsReport
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements
from router.shared.engines.breakers import Breakers
from router.shared.engines.drains import Drains
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.prompts.prompt_link import RedisRecordLink
from router.shared.prompts.prompt_records import PROMPTS_CHANNEL, PromptRecords
from router.shared.prompts.recent_prompts import RecentPrompts
from router.shared.quota.rate_limits import TenantLimits
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache
from router.telemetry.telemetry import Telemetry
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.model_lists import AdapterRefresh


class GatewayParts(NamedTuple):
    """What a Runtime needs of it."""

    gateway: Gateway
    coalescer: Coalescer
    background_services: BackgroundServices


def build_gateway(
    settings: Settings,
    *,
    backend: RedisBackend,
    pipeline: RedisPipeline,
    redis_writes: RedisWrites,
    clock: RedisClock,
    catalog: Catalog,
    breakers: Breakers,
    health: EngineHealth,
    selector: EngineSelector,
    resolver: RequestResolver,
    rules: TenantRules,
    client: EngineClient,
    admission: Admission,
    continuation_engines: ContinuationEngines,
    tenant_limits: TenantLimits,
    telemetry: Telemetry,
    drains: Drains,
    announcements: Announcements,
    stored_keys: StoredKeys,
    adapter_refresh: AdapterRefresh,
    waking: Waking | None,
    suspects: Suspects,
    prompt_records: PromptRecords,
    record_link: RedisRecordLink,
) -> GatewayParts:
    cache, timeouts = settings.cache, settings.timeouts
    retention = WorthRetention(pipeline) if cache.retention == "worth" else None
    seen_keys = SeenKeys()
    engine_requests = EngineRequests(client, engine_timeouts(settings), derive_salts(groups(settings)))
    coalescer = Coalescer(
        build_dispatcher(
            settings,
            engine_requests,
            EngineLosses(client, suspects),
            admission,
            health,
            continuation_engines,
            on_adapter_not_served=adapter_refresh.request,
            waking=waking,
        ),
        on_abandon=cache.on_abandon,
        abandon_timeout=cache.abandon,
        join_limit=cache.max_entry,
        record_generation=partial(record_generation, telemetry.record_generation, selector, tenant_limits),
        max_abandoned=abandon_limits(settings),
    )
    liveness = Liveness(clock.monotonic)
    # `local` is created below: purges and local cache need each other, and the lambda runs only once both exist.
    purges = Purges(pipeline, lambda scope: on_purge(coalescer, seen_keys, local, scope), alive=liveness.alive)
    local = LocalCache(cache.local, clock.now, is_purged=purges.covers, alive=liveness.alive)
    # What prolongs an entry's lifetime counts as a use, too.
    hit_counter = HitCounter(renewals=retention.renewals if retention is not None else LocalHits(local.holds).touches)
    leases = InFlightLeases(pipeline, on_remote_subscriber=coalescer.on_remote_subscriber)
    coalescer.enable_sharing(leases, purges)
    policy = cache_policy(settings)
    store = EntryStore(
        pipeline, purges, local, on_damaged=telemetry.record_damaged_entry, on_refused=redis_writes.on_refused
    )
    recent_prompts = RecentPrompts(
        pipeline,
        kept=cache.recent_prompts,
        served_models={engine.name: engine.served_model for engine in catalog.engines.values()},
        cache_salts=engine_requests.cache_salts,
        clock=time.monotonic,
    )
    storage = ResponseStorage(
        store=store, purges=purges, seen_keys=seen_keys, cache_policy=policy, recent_prompts=recent_prompts,
        retention=retention, record_write=telemetry.record_write, clock=clock.now,
    )  # fmt: skip
    gateway = Gateway(
        resolver=resolver,
        cache=CacheLookup(store, local, coalescer, seen_keys, policy, clock=clock.now),
        candidates=build_candidates(selector, catalog, breakers, health, admission, rules),
        coalescer=coalescer,
        purges=purges,
        storage=storage,
        record_hit=hit_counter.record_hit,
        queue_timeout=timeouts.queue,
        waking=waking,
        heartbeats=Heartbeats(ResponseHeaders().render, interval=timeouts.heartbeat, start_wait=timeouts.queue),
    )
    invalidation_handler = InvalidationHandler(
        pipeline=pipeline,
        local_cache=local,
        coalescer=coalescer,
        purges=purges,
        leases=leases,
        seen_keys=seen_keys,
        drains=drains,
        announcements=announcements,
        breakers=breakers,
        stored_keys=stored_keys,
        retention=retention,
        prompt_records=prompt_records,
        record_link=record_link,
        on_adapters_changed=adapter_refresh.request,
    )
    listener = Listener(
        backend,
        prefixes=tracked_prefixes(tenants(settings)),
        channels=(leases.channel, PROMPTS_CHANNEL),
        callbacks=invalidation_handler,
        retry_interval=cache.retry,
        clock=clock,
        liveness=liveness,
    )
    background_services = BackgroundServices(
        pipeline=pipeline, redis_writes=redis_writes,
        rights_report=RightsReport(backend, parse_redis_url(settings.redis_url).kind), purges=purges,
        leases=leases, listener=listener,
        coalescer=coalescer, hit_counter=hit_counter, retention=retention, tenant_limits=tenant_limits, drains=drains,
        announcements=announcements, stored_keys=stored_keys, invalidation_handler=invalidation_handler,
        flush_savings=partial(telemetry.flush_savings, pipeline, clock.now), adapter_refresh=adapter_refresh,
    )  # fmt: skip
    return GatewayParts(gateway, coalescer, background_services)
