"""Creates and connects all objects; the rest of the router receives them as arguments."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from router.api.auth import Authenticator
from router.api.cors import CorsPolicy
from router.api.inference import InferenceEndpoint
from router.api.ops import OpsRoutes, api_error, http_error, unhandled_error
from router.api.prompt_log import with_prompt_log
from router.api.usage import tenant_usage_route
from router.core.cache.key import ContextMarkers
from router.core.endpoints.requests.cache_salt import sharing_group_name
from router.core.endpoints.table import ENDPOINTS, UPLOAD_ENDPOINTS
from router.core.resilience.breaker import BreakerPolicy
from router.core.routing.classify import Classifier
from router.core.routing.draft_stats import DraftStats
from router.errors import ApiError
from router.flow.attempts.admission import Admission
from router.flow.attempts.continuation_engines import ContinuationEngines
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.attempts.waking import WakeResult, Waking
from router.flow.brownout import PressureMonitor
from router.flow.explain import Explainer
from router.flow.explain_choice import ChoiceExplainer
from router.flow.lookup import cache_policy
from router.flow.replicas.invalidation import on_drains
from router.flow.replicas.probe_round import on_probe_round
from router.flow.request_resolver import RequestResolver
from router.flow.tenant_rules import tenant_rules
from router.net.client.transport import HTTPTransport
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT_TIMEOUT
from router.net.redis.pipeline import RedisPipeline
from router.process.admin_app import build_admin
from router.process.application import Application
from router.process.gateway_app import build_gateway
from router.process.runtime import ProcessState, Runtime
from router.settings import Settings, groups, tenants
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.connection.redis_writes import RedisWrites
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements, Fleet
from router.shared.engines.breakers import Breakers
from router.shared.engines.drains import Drains
from router.shared.engines.start_times import StartTimes
from router.shared.prompts.prompt_link import RedisRecordLink
from router.shared.prompts.sibling_link import NO_SIBLINGS, FirstUpLink, SiblingLink
from router.shared.quota.rate_limits import TenantLimits, tenant_budgets, tenant_quotas
from router.store.admin.scan import RedisClient
from router.telemetry.telemetry import Telemetry
from router.telemetry.tracing.otlp import OpenExporter, open_tracer
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.configured_catalog import build_catalog
from router.upstream.kv_feeds import Subscribe, configured_feeds
from router.upstream.model_lists import AdapterRefresh, ModelListReader
from router.upstream.probe import EngineProbe
from router.upstream.process_slots import ProcessSlots
from router.upstream.shared_slots import SharedSlots, WorkerPlace


def build(
    settings: Settings,
    *,
    transport: HTTPTransport | None = None,
    multiprocess_dir: str | None = None,
    place: WorkerPlace | None = None,
    random: Callable[[], float] = random.random,
    open_exporter: OpenExporter | None = None,
    subscribe: Subscribe | None = None,
) -> Application:
    """The router as an ASGI application.

    `multiprocess_dir` is the directory in which worker processes share their metrics, and `place` is this worker's
    among them. `random` returns numbers from 0 up to 1; they decide when a request tries another engine than the best.
    `open_exporter` replaces the collector of [tracing], and `subscribe` ZMQ for the KV events of engines.
    """
    telemetry = Telemetry(log_format=settings.router.log_format, multiprocess_dir=multiprocess_dir)
    slots = SharedSlots(place) if place is not None else ProcessSlots()
    siblings = SiblingLink(place.directory, place.worker, place.workers) if place is not None else NO_SIBLINGS
    process_state = ProcessState(
        telemetry, transport or HTTPTransport(), DraftStats(), random, slots, siblings, open_exporter, subscribe
    )
    return Application(build_runtime, process_state, settings)


def build_runtime(settings: Settings, process_state: ProcessState, old: Runtime | None) -> Runtime:
    """Everything for one configuration. It inherits what `old`, which it replaces, has learned."""
    telemetry = process_state.telemetry
    catalog = build_catalog(settings, (old.settings, old.catalog) if old is not None else None, process_state.slots)
    for engine in catalog.engines.values():
        process_state.transport.prepare(engine.target("/").origin)
    client = EngineClient(process_state.transport, connect_timeout=settings.timeouts.connect)
    backend = open_backend(settings.redis_url, timeout=CONNECT_TIMEOUT)
    clock = RedisClock()
    pipeline = open_pipeline(backend, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
    redis_writes = RedisWrites(pipeline, clock=clock.monotonic)
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
        set_queue_length=process_state.queue_lengths.reporter(),
    )
    continuation_engines = ContinuationEngines(catalog, admission)
    waking = build_waking(catalog, admission, health, pipeline, telemetry)
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
    record_link = RedisRecordLink(pipeline)
    process_state.prompt_records.link = FirstUpLink(record_link, process_state.siblings)
    models = {engine.id: engine.model for engine in catalog.engines.values()}
    process_state.prefills.keep(models.keys(), models)
    selector = EngineSelector(
        catalog,
        process_state.draft_stats,
        process_state.prefills,
        process_state.prompt_records,
        exploration_rate=settings.router.explore,
        clock=time.perf_counter,
        random=process_state.random,
        affinity_names={name: sharing_group_name(name, group) for name, group in groups(settings).items()},
    )
    model_lists = ModelListReader(catalog, client)
    adapter_refresh = AdapterRefresh(catalog, model_lists)
    gateway, coalescer, background_services = build_gateway(
        settings,
        backend=backend,
        pipeline=pipeline,
        redis_writes=redis_writes,
        clock=clock,
        catalog=catalog,
        breakers=breakers,
        health=health,
        selector=selector,
        resolver=resolver,
        rules=rules,
        client=client,
        admission=admission,
        continuation_engines=continuation_engines,
        tenant_limits=tenant_limits,
        telemetry=telemetry,
        drains=drains,
        announcements=announcements,
        stored_keys=stored_keys,
        adapter_refresh=adapter_refresh,
        waking=waking,
        suspects=process_state.suspects,
        prompt_records=process_state.prompt_records,
        record_link=record_link,
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
            lambda: telemetry.update_gauges(
                catalog.engines.values(),
                breakers.state,
                redis_up=pipeline.up,
                asleep=catalog.asleep_engines(breakers.state),
            ),
        ),
        on_up=admission.recheck_engine,
    )
    ops = OpsRoutes(
        catalog=catalog, breakers=breakers, redis_writes=redis_writes, probe=probe, telemetry=telemetry, auth=auth,
        rules=rules,
        is_draining=lambda: process_state.draining,
    )  # fmt: skip
    admin = build_admin(
        settings,
        process_state,
        catalog=catalog,
        breakers=breakers,
        drains=drains,
        pipeline=pipeline,
        redis_writes=redis_writes,
        clock=clock,
        stored_keys=stored_keys,
        explainer=partial(build_explainer, settings, resolver),
        choice_explainer=ChoiceExplainer(
            router=f"{process_state.identity.host}:{process_state.identity.pid}",
            resolver=resolver,
            selector=selector,
            catalog=catalog,
            rules=rules,
            tenants=tenants(settings),
            breaker_state=breakers.state,
            clock=time.perf_counter,
        ),
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
            waits_for_start=waking is not None,
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
        auth=auth,
        inference_endpoints=with_prompt_log(settings, auth, inference_endpoints),
        starlette_app=starlette_app,
        probe=probe,
        background_services=background_services,
        coalescer=coalescer,
        admission=admission,
        continuation_engines=continuation_engines,
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
        waking=waking,
        kv_feeds=process_state.kv_feeds,
        followed=configured_feeds(settings),
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


def build_waking(
    catalog: Catalog, admission: Admission, health: EngineHealth, pipeline: RedisPipeline, telemetry: Telemetry
) -> Waking | None:
    """None if no model has `wake`."""
    if all(model.wake is None for model in catalog.models):
        return None
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
