"""Creates and connects all objects; the rest of the router receives them as arguments."""

import random
import time
from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from router.admin_app import build_admin
from router.api.auth import Authenticator
from router.api.cors import CorsPolicy
from router.api.inference import InferenceEndpoint
from router.api.ops import OpsRoutes, api_error, http_error, unhandled_error
from router.api.prompt_log import with_prompt_log
from router.api.usage import tenant_usage_route
from router.application import Application
from router.core.cache.key import ContextMarkers
from router.core.cache.miss_reason import SeenKeys
from router.core.cache.redis_keys import tracked_prefixes
from router.core.endpoints.cache_salt import derive_salts, sharing_group_name
from router.core.endpoints.table import ENDPOINTS, UPLOAD_ENDPOINTS
from router.core.resilience.breaker import BreakerPolicy
from router.core.resilience.timeouts import EngineTimeouts
from router.core.routing.classify import Classifier
from router.core.routing.draft_stats import DraftStats
from router.errors import ApiError
from router.flow.abandonment import abandon_limits
from router.flow.admission import Admission
from router.flow.background import BackgroundServices
from router.flow.brownout import Brownout, PressureMonitor
from router.flow.coalescer import Coalescer
from router.flow.dispatch import Dispatcher
from router.flow.engine_health import EngineHealth
from router.flow.engine_selection import EngineSelector
from router.flow.explain import Explainer
from router.flow.gateway import Gateway
from router.flow.generation import record_generation
from router.flow.invalidation import InvalidationHandler, on_drains, on_purge
from router.flow.lookup import cache_policy
from router.flow.probe_round import on_probe_round
from router.flow.request_resolver import RequestResolver
from router.flow.response_storage import ResponseStorage
from router.flow.tenant_rules import TenantRules, tenant_rules
from router.net.client.transport import HTTPTransport
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT_TIMEOUT
from router.net.redis.listener import Listener
from router.net.redis.liveness import Liveness
from router.net.redis.pipeline import RedisPipeline
from router.runtime import ProcessState, Runtime
from router.settings import Settings, groups, tenants
from router.shared.announcements import Announcements, Fleet
from router.shared.breakers import Breakers
from router.shared.drains import Drains
from router.shared.hit_counter import HitCounter
from router.shared.inflight_leases import InFlightLeases
from router.shared.purges import Purges
from router.shared.rate_limits import TenantLimits, tenant_budgets, tenant_quotas
from router.shared.recent_prompts import RecentPrompts
from router.shared.redis import open_backend, open_pipeline
from router.shared.stored_keys import StoredKeys
from router.store.admin.scan import RedisClient
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache
from router.telemetry import Telemetry
from router.tracing.otlp import OpenExporter, open_tracer
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.configured_catalog import build_catalog
from router.upstream.model_lists import AdapterRefresh, ModelListReader
from router.upstream.probe import EngineProbe


def build(
    settings: Settings,
    *,
    transport: HTTPTransport | None = None,
    multiprocess_dir: str | None = None,
    random: Callable[[], float] = random.random,
    open_exporter: OpenExporter | None = None,
) -> Application:
    """The router as an ASGI application.

    `multiprocess_dir` is the directory in which worker processes share their metrics. `random` returns numbers from 0
    up to 1; they decide when a request tries another engine than the best. `open_exporter` replaces the collector of
    [tracing].
    """
    telemetry = Telemetry(log_format=settings.router.log_format, multiprocess_dir=multiprocess_dir)
    process_state = ProcessState(telemetry, transport or HTTPTransport(), DraftStats(), random, open_exporter)
    return Application(build_runtime, process_state, settings)


def build_runtime(settings: Settings, process_state: ProcessState, old: Runtime | None) -> Runtime:
    """Everything for one configuration. It inherits what `old`, which it replaces, has learned."""
    telemetry = process_state.telemetry
    catalog = build_catalog(settings, (old.settings, old.catalog) if old is not None else None)
    for engine in catalog.engines.values():
        process_state.transport.prepare(engine.target("/").origin)
    client = EngineClient(process_state.transport, connect_timeout=settings.timeouts.connect)
    backend = open_backend(settings.redis_url, timeout=CONNECT_TIMEOUT)
    clock = RedisClock()
    pipeline = open_pipeline(backend, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
    auth = build_authenticator(settings, clock)
    stored_keys = StoredKeys(
        pipeline,
        auth.set_stored_keys,
        clock=clock.now,
        take_used=auth.take_used,
        enabled=has_stored_keys(settings),
        publishes=settings.auth_mode == "keys",
        previous=old.stored_keys if old is not None and old.settings.redis_url == settings.redis_url else None,
    )
    rules = tenant_rules(settings, catalog)
    resolver = build_request_resolver(settings, catalog)
    breakers = build_breakers(settings, pipeline, catalog, clock)
    if old is not None:
        breakers.inherit(old.breakers)
    health = EngineHealth(breakers)
    admission = Admission(
        catalog,
        readiness=health.readiness,
        queue_timeout=settings.timeouts.queue,
        set_queue_length=telemetry.set_queue_length,
    )
    drains = Drains(pipeline, partial(on_drains, catalog, admission), old.drains if old is not None else None)
    catalog.set_drained(drains.names)
    announcements = Announcements(
        pipeline,
        partial(on_fleet_change, catalog, admission, process_state),
        clock=time.monotonic,
        redis_clock=clock.now,
        previous=old.announcements if old is not None else None,
    )
    catalog.set_announced(announcements.fleet.engines)
    tenant_limits = TenantLimits(pipeline, tenant_quotas(settings), tenant_budgets(settings), clock=clock.now)
    selector = EngineSelector(
        catalog,
        process_state.draft_stats,
        exploration_rate=settings.router.explore,
        clock=time.perf_counter,
        random=process_state.random,
        affinity_names={name: sharing_group_name(name, group) for name, group in groups(settings).items()},
    )
    model_lists = ModelListReader(catalog, client)
    adapter_refresh = AdapterRefresh(catalog, model_lists)
    gateway, coalescer, background_services = _build_gateway(
        settings,
        backend,
        pipeline,
        clock,
        catalog,
        breakers,
        health,
        selector,
        resolver,
        rules,
        client,
        admission,
        tenant_limits,
        telemetry,
        drains,
        announcements,
        stored_keys,
        adapter_refresh,
    )
    probe = EngineProbe(
        catalog,
        client,
        model_lists=model_lists,
        on_round=partial(
            on_probe_round,
            selector,
            PressureMonitor(catalog, breakers),
            admission,
            lambda: telemetry.update_gauges(catalog.engines.values(), breakers.state, redis_up=pipeline.up),
        ),
    )
    ops = OpsRoutes(
        catalog=catalog, breakers=breakers, pipeline=pipeline, probe=probe, telemetry=telemetry, auth=auth, rules=rules,
        is_draining=lambda: process_state.draining,
    )  # fmt: skip
    admin = build_admin(
        settings,
        process_state,
        catalog=catalog,
        breakers=breakers,
        drains=drains,
        admission=admission,
        pipeline=pipeline,
        clock=clock,
        stored_keys=stored_keys,
        explainer=partial(build_explainer, settings, resolver),
        client=client,
        model_lists=model_lists,
    )
    # Late: if something above raises, nothing holds a tracer.
    tracer = open_tracer(
        settings, telemetry.record_dropped_spans, process_state.open_exporter, old.tracer if old is not None else None
    )
    max_audio = min(settings.router.max_audio, settings.router.max_bodies)
    inference_endpoints = {
        endpoint.path: InferenceEndpoint(
            endpoint,
            gateway,
            auth,
            tenant_limits,
            telemetry,
            process_state.body_budget,
            max_body=settings.router.max_body if endpoint in ENDPOINTS else max_audio,
            max_bodies=settings.router.max_bodies,
            tracer=tracer,
        )
        for endpoint in (*ENDPOINTS, *UPLOAD_ENDPOINTS)
    }
    starlette_app = Starlette(
        routes=[*ops.routes(), tenant_usage_route(auth, tenant_limits, settings, admin.redis), *admin.routes],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unhandled_error},
    )
    starlette_app.router.redirect_slashes = False  # a redirect would contain the Host that the client sent
    return Runtime(
        settings=settings,
        catalog=catalog,
        inference_endpoints=with_prompt_log(settings, auth, inference_endpoints),
        starlette_app=starlette_app,
        probe=probe,
        background_services=background_services,
        coalescer=coalescer,
        admission=admission,
        drains=drains,
        announcements=announcements,
        stored_keys=stored_keys,
        tenant_limits=tenant_limits,
        breakers=breakers,
        tracer=tracer,
        cors=CorsPolicy(settings.router.allowed_origins) if settings.router.allowed_origins else None,
        admin_redis=admin.redis,
        event_hub=admin.event_hub,
        status_publisher=admin.status_publisher,
    )


def has_stored_keys(settings: Settings) -> bool:
    """Whether keys in Redis make a difference."""
    return settings.auth.mode in (None, "keys")


def build_authenticator(settings: Settings, clock: RedisClock) -> Authenticator:
    return Authenticator(
        settings.auth_mode,
        {key: tenant.name for tenant in settings.tenant for key in tenant.keys},
        tenants(settings),
        guarded=settings.auth.mode is None,
        has_stored_keys=has_stored_keys(settings),
        clock=clock.now,
    )


def on_fleet_change(catalog: Catalog, admission: Admission, process_state: ProcessState, fleet: Fleet) -> None:
    """Applies the announced states at once; the application applies other engines and revisions."""
    catalog.set_announced(fleet.engines)
    admission.recheck()  # an engine with a higher capacity takes waiting requests
    process_state.on_fleet_change()


def _build_gateway(
    settings: Settings,
    backend: RedisBackend,
    pipeline: RedisPipeline,
    clock: RedisClock,
    catalog: Catalog,
    breakers: Breakers,
    health: EngineHealth,
    engine_selector: EngineSelector,
    request_resolver: RequestResolver,
    rules: TenantRules,
    client: EngineClient,
    admission: Admission,
    tenant_limits: TenantLimits,
    telemetry: Telemetry,
    drains: Drains,
    announcements: Announcements,
    stored_keys: StoredKeys,
    adapter_refresh: AdapterRefresh,
) -> tuple[Gateway, Coalescer, BackgroundServices]:
    cache, timeouts = settings.cache, settings.timeouts
    hit_counter = HitCounter()
    seen_keys = SeenKeys()
    cache_salts = derive_salts(groups(settings))

    coalescer = Coalescer(
        Dispatcher(
            client,
            admission,
            EngineTimeouts(timeouts.first_token, timeouts.between_tokens, timeouts.min_tokens_per_second),
            health,
            max_entry=cache.max_entry,
            cache_salts=cache_salts,
            on_adapter_not_served=adapter_refresh.request,
        ),
        on_abandon=cache.on_abandon,
        abandon_timeout=cache.abandon,
        join_limit=cache.max_entry,
        record_generation=partial(record_generation, telemetry.record_generation, engine_selector, tenant_limits),
        max_abandoned=abandon_limits(settings),
    )
    liveness = Liveness(clock.monotonic)
    # `local` is created below: purges and local cache need each other, and the lambda runs only once both exist.
    purges = Purges(pipeline, lambda scope: on_purge(coalescer, seen_keys, local, scope), alive=liveness.alive)
    local = LocalCache(cache.local, clock.now, is_purged=purges.covers, alive=liveness.alive)
    leases = InFlightLeases(pipeline, on_remote_subscriber=coalescer.on_remote_subscriber)
    coalescer.enable_sharing(leases, purges)
    policy = cache_policy(settings)
    store = EntryStore(pipeline, purges, local, on_damaged=telemetry.record_damaged_entry)
    recent_prompts = RecentPrompts(
        pipeline,
        kept=cache.recent_prompts,
        served_models={engine.name: engine.served_model for engine in catalog.engines.values()},
        cache_salts=cache_salts,
        clock=time.monotonic,
    )
    storage = ResponseStorage(
        store=store, purges=purges, seen_keys=seen_keys, cache_policy=policy, recent_prompts=recent_prompts,
        record_write=telemetry.record_write, clock=clock.now,
    )  # fmt: skip
    gateway = Gateway(
        resolver=request_resolver,
        selector=engine_selector,
        store=store,
        local_cache=local,
        coalescer=coalescer,
        purges=purges,
        seen_keys=seen_keys,
        cache_policy=policy,
        brownout=Brownout(catalog, breakers),
        storage=storage,
        rules=rules,
        record_hit=hit_counter.record_hit,
        clock=clock.now,
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
        on_adapters_changed=adapter_refresh.request,
    )
    listener = Listener(
        backend,
        prefixes=tracked_prefixes(tenants(settings)),
        channel=leases.channel,
        callbacks=invalidation_handler,
        retry_interval=cache.retry,
        clock=clock,
        liveness=liveness,
    )
    background_services = BackgroundServices(
        pipeline=pipeline, purges=purges, leases=leases, listener=listener, coalescer=coalescer,
        hit_counter=hit_counter, tenant_limits=tenant_limits, drains=drains,
        announcements=announcements, stored_keys=stored_keys, invalidation_handler=invalidation_handler,
        flush_savings=partial(telemetry.flush_savings, pipeline, clock.now), adapter_refresh=adapter_refresh,
    )  # fmt: skip
    return gateway, coalescer, background_services


def build_breakers(settings: Settings, pipeline: RedisPipeline, catalog: Catalog, clock: RedisClock) -> Breakers:
    limits = settings.breaker
    return Breakers(
        pipeline,
        BreakerPolicy(limits.open_above, limits.close_below, limits.failures, limits.cooldown),
        engine_names=catalog.engines.keys,
        clock=clock,
    )


def build_request_resolver(settings: Settings, catalog: Catalog) -> RequestResolver:
    return RequestResolver(
        catalog=catalog,
        log_odds_of=Classifier.load().log_odds,
        markers=ContextMarkers(settings.cache.context_open, settings.cache.context_close),
        rules=tenant_rules(settings, catalog),
    )


def build_explainer(settings: Settings, request_resolver: RequestResolver, redis: RedisClient) -> Explainer:
    policy = cache_policy(settings)
    store_policies = {name: tenant.store_policy for name, tenant in policy.tenants.items()}
    return Explainer(
        resolver=request_resolver, client=redis, store_policies=store_policies, remote_content=policy.remote_content
    )
