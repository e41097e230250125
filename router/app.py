"""Creates and connects all objects; the rest of the router receives them as arguments."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from router.api.admin import AdminRoutes
from router.api.auth import AdminAuthenticator, Authenticator
from router.api.engine_admin import EngineAdmin
from router.api.inference import InferenceEndpoint
from router.api.ops import OpsRoutes, api_error, http_error, unhandled_error
from router.application import Application, ProcessState, Runtime
from router.core.cache.key import ContextMarkers
from router.core.cache.miss_reason import SeenKeys
from router.core.cache.redis_keys import tracked_prefixes
from router.core.endpoints.cache_salt import derive_salts, sharing_group_name
from router.core.endpoints.table import ENDPOINTS
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
from router.net.client.transport import HTTPTransport
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT_TIMEOUT, open_client
from router.net.redis.listener import Listener
from router.net.redis.liveness import Liveness
from router.net.redis.pipeline import RedisPipeline
from router.settings import Settings, groups, tenants
from router.shared.breakers import Breakers
from router.shared.drains import Drains
from router.shared.hit_counter import HitCounter
from router.shared.inflight_leases import InFlightLeases
from router.shared.purges import Purges
from router.shared.rate_limits import TenantLimits, tenant_quotas
from router.shared.redis import open_backend, open_pipeline
from router.store.admin.scan import RedisClient
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache
from router.telemetry import Telemetry
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.configured_catalog import build_catalog
from router.upstream.probe import EngineProbe

ADMIN_REDIS_TIMEOUT: Final = 5.0
"""Seconds that Redis has to reply to an admin request."""


def build(
    settings: Settings,
    *,
    transport: HTTPTransport | None = None,
    multiprocess_dir: str | None = None,
    random: Callable[[], float] = random.random,
) -> Application:
    """The router as an ASGI application.

    `multiprocess_dir` is the directory in which worker processes share their metrics. `random` returns numbers from 0
    up to 1; they decide when a request tries another engine than the best.
    """
    telemetry = Telemetry(log_format=settings.router.log_format, multiprocess_dir=multiprocess_dir)
    return Application(
        build_runtime, ProcessState(telemetry, transport or HTTPTransport(), DraftStats(), random), settings
    )


def build_runtime(settings: Settings, process_state: ProcessState, old: Runtime | None) -> Runtime:
    """Everything for one configuration. It inherits what `old`, which it replaces, has learned."""
    telemetry = process_state.telemetry
    catalog = build_catalog(settings, (old.settings, old.catalog) if old is not None else None)
    client = EngineClient(process_state.transport, connect_timeout=settings.timeouts.connect)
    auth = Authenticator(
        settings.auth.mode, {key: t.name for t in settings.tenant for key in t.keys}, tenants(settings)
    )
    backend = open_backend(settings.redis_url, timeout=CONNECT_TIMEOUT)
    clock = RedisClock()
    pipeline = open_pipeline(backend, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
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
    tenant_limits = TenantLimits(pipeline, tenant_quotas(settings))
    selector = EngineSelector(
        catalog,
        process_state.draft_stats,
        exploration_rate=settings.router.explore,
        clock=time.perf_counter,
        random=process_state.random,
        affinity_names={name: sharing_group_name(name, group) for name, group in groups(settings).items()},
    )
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
        client,
        admission,
        tenant_limits,
        telemetry,
        drains,
    )
    probe = EngineProbe(
        catalog,
        client,
        on_round=partial(
            on_probe_round,
            selector,
            PressureMonitor(catalog, breakers),
            admission,
            lambda: telemetry.update_gauges(catalog.engines.values(), breakers.state, redis_up=pipeline.up),
        ),
    )
    ops = OpsRoutes(
        catalog=catalog, breakers=breakers, pipeline=pipeline, probe=probe, telemetry=telemetry, auth=auth,
        is_draining=lambda: process_state.draining,
    )  # fmt: skip
    # A client of its own: an admin command may be slow, and the pipeline has the short timeout of a look-up.
    admin_redis = open_client(settings.redis_url, timeout=ADMIN_REDIS_TIMEOUT)
    admin = AdminRoutes(
        authenticator=AdminAuthenticator(settings.auth.admin_keys),
        redis=admin_redis,
        explainer=build_explainer(settings, resolver, admin_redis),
        engine_admin=EngineAdmin(catalog, drains),
        max_body=settings.router.max_body,
    )
    inference_endpoints = {
        endpoint.path: InferenceEndpoint(
            endpoint,
            gateway,
            auth,
            tenant_limits,
            telemetry,
            process_state.body_budget,
            max_body=settings.router.max_body,
            max_bodies=settings.router.max_bodies,
        )
        for endpoint in ENDPOINTS
    }
    starlette_app = Starlette(
        routes=[*ops.routes(), *admin.routes()],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unhandled_error},
    )
    starlette_app.router.redirect_slashes = False  # a redirect would contain the Host that the client sent
    return Runtime(
        settings=settings,
        catalog=catalog,
        inference_endpoints=inference_endpoints,
        starlette_app=starlette_app,
        probe=probe,
        background_services=background_services,
        coalescer=coalescer,
        drains=drains,
        breakers=breakers,
        admin_redis=admin_redis,
    )


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
    client: EngineClient,
    admission: Admission,
    tenant_limits: TenantLimits,
    telemetry: Telemetry,
    drains: Drains,
) -> tuple[Gateway, Coalescer, BackgroundServices]:
    cache, timeouts = settings.cache, settings.timeouts
    hit_counter = HitCounter()
    seen_keys = SeenKeys()

    coalescer = Coalescer(
        Dispatcher(
            client,
            admission,
            EngineTimeouts(timeouts.first_token, timeouts.between_tokens, timeouts.min_tokens_per_second),
            health,
            max_entry=cache.max_entry,
            cache_salts=derive_salts(groups(settings)),
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
    gateway = Gateway(
        resolver=request_resolver,
        selector=engine_selector,
        store=EntryStore(pipeline, purges, local, on_damaged=telemetry.record_damaged_entry),
        local_cache=local,
        coalescer=coalescer,
        purges=purges,
        seen_keys=seen_keys,
        cache_policy=cache_policy(settings),
        brownout=Brownout(catalog, breakers),
        record_write=telemetry.record_write,
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
        breakers=breakers,
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
        hit_counter=hit_counter, tenant_limits=tenant_limits, drains=drains, invalidation_handler=invalidation_handler,
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
        classify=Classifier.load().task,
        markers=ContextMarkers(settings.cache.context_open, settings.cache.context_close),
    )


def build_explainer(settings: Settings, request_resolver: RequestResolver, redis: RedisClient) -> Explainer:
    policy = cache_policy(settings)
    store_policies = {name: tenant.store_policy for name, tenant in policy.tenants.items()}
    return Explainer(
        resolver=request_resolver, client=redis, store_policies=store_policies, remote_content=policy.remote_content
    )
