"""Where the parts are made and put together; nothing else in the router makes another part."""

import random
import time
from collections.abc import Callable
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
from router.core.quota.rate_limit import Quota
from router.core.resilience.breaker import BreakerPolicy, BreakerState
from router.core.resilience.timeouts import EngineTimeouts
from router.core.routing.classify import Classifier
from router.core.routing.draft_stats import DraftStats
from router.core.types import Endpoint
from router.errors import ApiError
from router.flow.admission import Admission
from router.flow.background import BackgroundServices
from router.flow.brownout import Brownout, PressureMonitor
from router.flow.coalescer import Coalescer
from router.flow.dispatch import Dispatcher
from router.flow.engine_health import EngineHealth
from router.flow.engine_selection import EngineSelector
from router.flow.exchange import GenerationRecord
from router.flow.explain import Explainer
from router.flow.gateway import Gateway
from router.flow.invalidation import InvalidationHandler, on_purge
from router.flow.lookup import CachePolicy, TenantCachePolicy
from router.flow.request_resolver import RequestResolver
from router.net.client.transport import HTTPTransport
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT_TIMEOUT, open_client
from router.net.redis.listener import Listener
from router.net.redis.liveness import Liveness
from router.net.redis.pipeline import RedisPipeline
from router.settings import Settings, Tenant, groups, tenants
from router.shared.breakers import MIN_PROBE_LEASE, Breakers
from router.shared.drains import Drains
from router.shared.hit_counter import HitCounter
from router.shared.inflight_leases import InFlightLeases
from router.shared.purges import Purges
from router.shared.rate_limits import TenantLimits
from router.shared.redis import open_line, open_link
from router.store.admin.scan import RedisClient
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache
from router.telemetry import Telemetry
from router.upstream.catalog import Catalog, Engine, Model
from router.upstream.client import EngineClient
from router.upstream.probe import EngineProbe

ADMIN_REDIS_TIMEOUT: Final = 5.0
"""Seconds that Redis has for each answer to an administrator."""


def build(
    settings: Settings,
    *,
    transport: HTTPTransport | None = None,
    multiprocess_dir: str | None = None,
    random: Callable[[], float] = random.random,
) -> Application:
    """The router as an ASGI application.

    `multiprocess` is the folder in which its workers share their metrics; `random` gives numbers from 0 up to 1, by
    which it tries other engines than the best.
    """
    telemetry = Telemetry(log_format=settings.router.log_format, multiprocess_dir=multiprocess_dir)
    return Application(
        build_runtime, ProcessState(telemetry, transport or HTTPTransport(), DraftStats(), random), settings
    )


def build_runtime(settings: Settings, process_state: ProcessState, old: Runtime | None) -> Runtime:
    """All that one configuration asks for. What the site that it replaces has learned lives on."""
    telemetry = process_state.telemetry
    catalog = build_catalog(settings, (old.settings, old.catalog) if old is not None else None)
    client = EngineClient(process_state.transport, connect_timeout=settings.timeouts.connect)
    auth = Authenticator(
        settings.auth.mode, {key: t.name for t in settings.tenant for key in t.keys}, tenants(settings)
    )
    link = open_link(settings.redis_url, timeout=CONNECT_TIMEOUT)
    clock = RedisClock()
    line = open_line(link, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
    drains = Drains(line, catalog.set_drained, old.drains if old is not None else None)
    catalog.set_drained(drains.names)
    reader = build_request_resolver(settings, catalog)
    breakers = build_breakers(settings, line, catalog, clock)
    if old is not None:
        breakers.inherit(old.breakers)

    def takes_work(engine: Engine) -> bool:
        state = breakers.state(engine.name)
        if engine.up is False or engine.drained:
            return False
        # A half-open one is asked one thing at a time.
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not engine.in_flight)

    admission = Admission(
        catalog,
        accepts_requests=takes_work,
        queue_timeout=settings.timeouts.queue,
        set_queue_length=telemetry.set_queue_length,
    )
    limits = TenantLimits(line, {t.name: _quota(t) for t in settings.tenant})
    chooser = EngineSelector(
        catalog,
        process_state.draft_stats,
        exploration_rate=settings.router.explore,
        clock=time.perf_counter,
        random=process_state.random,
        affinity_names={name: sharing_group_name(name, group) for name, group in groups(settings).items()},
    )
    gateway, flights, sharing = _build_gateway(
        settings, link, line, clock, catalog, breakers, chooser, reader, client, admission, limits, telemetry, drains
    )
    watch = PressureMonitor(catalog, breakers)

    def checked() -> None:
        chooser.on_probe_round()
        watch.on_probe_round()
        telemetry.update_gauges(catalog.engines.values(), breakers.state, redis_up=line.up)
        admission.recheck()

    probe = EngineProbe(catalog, client, on_round=checked)
    ops = OpsRoutes(
        catalog=catalog, breakers=breakers, pipeline=line, probe=probe, telemetry=telemetry, auth=auth,
        is_draining=lambda: process_state.draining,
    )  # fmt: skip
    survey = open_client(settings.redis_url, timeout=ADMIN_REDIS_TIMEOUT)
    admin = AdminRoutes(
        authenticator=AdminAuthenticator(settings.auth.admin_keys),
        redis=survey,
        explainer=build_explainer(settings, reader, survey),
        engine_admin=EngineAdmin(catalog, drains),
        max_body=settings.router.max_body,
    )
    generate = {
        endpoint.value: InferenceEndpoint(
            endpoint,
            gateway,
            auth,
            limits,
            telemetry,
            process_state.body_budget,
            max_body=settings.router.max_body,
            max_bodies=settings.router.max_bodies,
        )
        for endpoint in Endpoint
    }
    pages = Starlette(
        routes=[*ops.routes(), *admin.routes()],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unhandled_error},
    )
    pages.router.redirect_slashes = False  # a redirect would name the host that the client claims
    return Runtime(
        settings=settings,
        catalog=catalog,
        inference_endpoints=generate,
        starlette_app=pages,
        probe=probe,
        background_services=sharing,
        coalescer=flights,
        drains=drains,
        breakers=breakers,
        admin_redis=survey,
    )


def _build_gateway(
    settings: Settings,
    backend: RedisBackend,
    pipeline: RedisPipeline,
    clock: RedisClock,
    catalog: Catalog,
    breakers: Breakers,
    engine_selector: EngineSelector,
    request_resolver: RequestResolver,
    client: EngineClient,
    admission: Admission,
    tenant_limits: TenantLimits,
    telemetry: Telemetry,
    drains: Drains,
) -> tuple[Gateway, Coalescer, BackgroundServices]:
    """The story of a request, and what this process shares with others meanwhile."""
    cache, limits = settings.cache, settings.timeouts
    popularity = HitCounter()
    hints = SeenKeys()

    def landed(work: GenerationRecord) -> None:
        telemetry.record_generation(work)
        engine_selector.record_generation(work)
        tenant_limits.subtract_tokens(work.tenant, work.total_tokens)

    flights = Coalescer(
        Dispatcher(
            client,
            admission,
            EngineTimeouts(limits.first_token, limits.between_tokens, limits.min_tokens_per_second),
            EngineHealth(breakers),
            max_entry=cache.max_entry,
            cache_salts=derive_salts(groups(settings)),
        ),
        on_abandon=cache.on_abandon,
        abandon_timeout=cache.abandon,
        join_limit=cache.max_entry,
        record_generation=landed,
        max_abandoned={t.name: t.concurrent_requests for t in settings.tenant if t.concurrent_requests is not None},
    )
    liveness = Liveness(clock.monotonic)
    purges = Purges(pipeline, lambda scope: on_purge(flights, hints, local, scope), alive=liveness.alive)
    local = LocalCache(cache.local, clock.now, is_purged=purges.covers, alive=liveness.alive)
    shared = InFlightLeases(pipeline, on_remote_subscriber=flights.on_remote_subscriber)
    flights.enable_sharing(shared, purges, liveness.alive)
    gateway = Gateway(
        resolver=request_resolver,
        selector=engine_selector,
        store=EntryStore(pipeline, purges, local, on_damaged=telemetry.record_damaged_entry),
        local_cache=local,
        coalescer=flights,
        purges=purges,
        seen_keys=hints,
        cache_policy=CachePolicy(_tenant_caches(settings), cache.stale_if_error, cache.remote_content),
        brownout=Brownout(catalog, breakers),
        record_write=telemetry.record_write,
        record_hit=popularity.record_hit,
        clock=clock.now,
    )
    hearing = InvalidationHandler(
        pipeline=pipeline,
        local_cache=local,
        coalescer=flights,
        purges=purges,
        leases=shared,
        seen_keys=hints,
        drains=drains,
        breakers=breakers,
    )
    listener = Listener(
        backend,
        prefixes=tracked_prefixes(tenants(settings)),
        channel=shared.channel,
        callbacks=hearing,
        retry_interval=cache.retry,
        clock=clock,
        liveness=liveness,
    )
    sharing = BackgroundServices(
        pipeline=pipeline, purges=purges, leases=shared, listener=listener, coalescer=flights, hit_counter=popularity,
        tenant_limits=tenant_limits, drains=drains, invalidation_handler=hearing,
    )  # fmt: skip
    return gateway, flights, sharing


def _tenant_caches(settings: Settings) -> dict[str, TenantCachePolicy]:
    cache, own = settings.cache, {tenant.name: tenant for tenant in settings.tenant}
    caches = {}
    for name in tenants(settings):
        tenant = own.get(name, Tenant(name=name))
        caches[name] = TenantCachePolicy(
            cache.ttl if tenant.ttl is None else tenant.ttl, cache.store if tenant.store is None else tenant.store
        )
    return caches


def _quota(tenant: Tenant) -> Quota:
    return Quota(
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        concurrent_requests=tenant.concurrent_requests,
    )


def build_breakers(settings: Settings, pipeline: RedisPipeline, catalog: Catalog, clock: RedisClock) -> Breakers:
    """The breakers of the catalog's engines."""
    limits = settings.breaker
    return Breakers(
        pipeline,
        BreakerPolicy(limits.open_above, limits.close_below, limits.failures, limits.cooldown),
        engine_names=catalog.engines.keys,
        # A long JSON answer must not keep the others waiting until its end: then one more may find out.
        probe_lease=max(limits.cooldown, MIN_PROBE_LEASE),
        clock=clock,
    )


def build_catalog(settings: Settings, old: tuple[Settings, Catalog] | None = None) -> Catalog:
    """The models and engines of the configuration; of an engine with several urls, each is one of its own.

    An engine that stands in `old` as it does now is the same object, and counts on. What is known of one with the same
    name and address lives on in any case.
    """
    models = [Model(m.name, m.revision, tuple(m.aliases), tuple(m.auto), m.fallback) for m in settings.model]
    engines = []
    for engine in settings.engine:
        many = len(engine.addresses) > 1
        unchanged = old is not None and engine in old[0].engine and settings.breaker == old[0].breaker
        for number, url in enumerate(engine.addresses, 1):
            name = f"{engine.name}.{number}" if many else engine.name
            known = old[1].engines.get(name) if old is not None else None
            if known is not None and unchanged:
                engines.append(known)
                continue
            made = Engine(
                name=name,
                model=engine.model,
                task=engine.task,
                url=url,
                served_model=engine.served_model or engine.model,
                max_model_len=engine.max_model_len,
                family=engine.name,
                has_draft=engine.launch is not None and engine.launch.draft is not None,
                max_in_flight=engine.max_in_flight and max(1, engine.max_in_flight // settings.router.workers),
            )
            if known is not None and known.url == url:
                made.inherit_state(known)
            engines.append(made)
    return Catalog(models, engines)


def build_request_resolver(settings: Settings, catalog: Catalog) -> RequestResolver:
    """What understands requests."""
    return RequestResolver(
        catalog=catalog,
        classify=Classifier.load().task,
        markers=ContextMarkers(settings.cache.context_open, settings.cache.context_close),
    )


def build_explainer(settings: Settings, request_resolver: RequestResolver, redis: RedisClient) -> Explainer:
    """What explains requests as the router of these settings would take them; `client` is Redis'."""
    stores = {name: cache.store_policy for name, cache in _tenant_caches(settings).items()}
    return Explainer(
        resolver=request_resolver, client=redis, store_policies=stores, remote_content=settings.cache.remote_content
    )
