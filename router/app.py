"""Where the parts are made and put together; nothing else in the router makes another part."""

import random
import time
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from router.api.admin import Admin
from router.api.auth import AdminDoor, Authenticator
from router.api.engine_admin import EnginePages
from router.api.inference import Generate
from router.api.ops import Ops, api_error, defect, http_error
from router.application import Application, Lasting, Site
from router.core.cache.key import Markers
from router.core.cache.miss_reason import Hints
from router.core.cache.redis_keys import heard
from router.core.endpoints.cache_salt import affinity_name, salts_of
from router.core.quota.rate_limit import Quota
from router.core.resilience.breaker import Limits, State
from router.core.resilience.timeouts import Patience
from router.core.routing.classify import Classifier
from router.core.routing.draft_stats import Experience
from router.core.types import Endpoint
from router.errors import ApiError
from router.flow.admission import Admission
from router.flow.background import Sharing
from router.flow.brownout import Brownout, Watch
from router.flow.coalescer import Flights
from router.flow.dispatch import Dispatcher
from router.flow.engine_health import Standing
from router.flow.engine_selection import Chooser
from router.flow.exchange import Work
from router.flow.explain import Explainer
from router.flow.gateway import Gateway
from router.flow.invalidation import Hearing, on_purge
from router.flow.lookup import CacheSettings, TenantCache
from router.flow.request_resolver import RequestReader
from router.net.client.transport import Transport
from router.net.redis.backend import Link
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT, open_client
from router.net.redis.listener import Listener
from router.net.redis.liveness import Liveness
from router.net.redis.pipeline import Line
from router.settings import Settings, Tenant, groups, tenants
from router.shared.breakers import LEAST_LEASE, Breakers
from router.shared.drains import Drains
from router.shared.hit_counter import Popularity
from router.shared.inflight_leases import SharedFlights
from router.shared.purges import Purges
from router.shared.rate_limits import TenantLimits
from router.shared.redis import open_line, open_link
from router.store.admin.scan import Client
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCopy
from router.telemetry import Telemetry
from router.upstream.catalog import Catalog, Engine, Model
from router.upstream.client import EngineClient
from router.upstream.probe import Probe

PATIENCE: Final = 5.0
"""Seconds that Redis has for each answer to an administrator."""


def build(
    settings: Settings,
    *,
    transport: Transport | None = None,
    multiprocess: str | None = None,
    random: Callable[[], float] = random.random,
) -> Application:
    """The router as an ASGI application.

    `multiprocess` is the folder in which its workers share their metrics; `random` gives numbers from 0 up to 1, by
    which it tries other engines than the best.
    """
    telemetry = Telemetry(log_format=settings.router.log_format, multiprocess=multiprocess)
    return Application(build_site, Lasting(telemetry, transport or Transport(), Experience(), random), settings)


def build_site(settings: Settings, lasting: Lasting, old: Site | None) -> Site:
    """All that one configuration asks for. What the site that it replaces has learned lives on."""
    telemetry = lasting.telemetry
    catalog = build_catalog(settings, (old.settings, old.catalog) if old is not None else None)
    client = EngineClient(lasting.transport, connect_timeout=settings.timeouts.connect)
    auth = Authenticator(
        settings.auth.mode, {key: t.name for t in settings.tenant for key in t.keys}, tenants(settings)
    )
    link = open_link(settings.redis_url, timeout=CONNECT)
    clock = RedisClock()
    line = open_line(link, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
    drains = Drains(line, catalog.drain, old.drains if old is not None else None)
    catalog.drain(drains.names)
    reader = build_reader(settings, catalog)
    breakers = build_breakers(settings, line, catalog, clock)
    if old is not None:
        breakers.inherit(old.breakers)

    def takes_work(engine: Engine) -> bool:
        state = breakers.state(engine.name)
        if engine.up is False or engine.drained:
            return False
        # A half-open one is asked one thing at a time.
        return state is State.CLOSED or (state is State.HALF_OPEN and not engine.in_flight)

    admission = Admission(catalog, takes_work=takes_work, patience=settings.timeouts.queue, queued=telemetry.queued)
    limits = TenantLimits(line, {t.name: _quota(t) for t in settings.tenant})
    chooser = Chooser(
        catalog, lasting.experience, explore=settings.router.explore, clock=time.perf_counter, random=lasting.random,
        affinity_names={name: affinity_name(name, group) for name, group in groups(settings).items()},
    )  # fmt: skip
    gateway, flights, sharing = _build_gateway(
        settings, link, line, clock, catalog, breakers, chooser, reader, client, admission, limits, telemetry, drains
    )
    watch = Watch(catalog, breakers)

    def checked() -> None:
        chooser.checked()
        watch.checked()
        telemetry.observe(catalog.engines.values(), breakers.state, redis_up=line.up)
        admission.look_again()

    probe = Probe(catalog, client, checked=checked)
    ops = Ops(
        catalog=catalog, breakers=breakers, line=line, probe=probe, telemetry=telemetry, auth=auth,
        draining=lambda: lasting.draining,
    )  # fmt: skip
    survey = open_client(settings.redis_url, timeout=PATIENCE)
    admin = Admin(
        door=AdminDoor(settings.auth.admin_keys),
        client=survey,
        explainer=build_explainer(settings, reader, survey),
        engines=EnginePages(catalog, drains),
        max_body=settings.router.max_body,
    )
    generate = {
        endpoint.value: Generate(
            endpoint,
            gateway,
            auth,
            limits,
            telemetry,
            lasting.bodies,
            max_body=settings.router.max_body,
            max_bodies=settings.router.max_bodies,
        )
        for endpoint in Endpoint
    }
    pages = Starlette(
        routes=[*ops.routes(), *admin.routes()],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: defect},
    )
    pages.router.redirect_slashes = False  # a redirect would name the host that the client claims
    return Site(
        settings=settings, catalog=catalog, generate=generate, pages=pages, probe=probe, sharing=sharing,
        flights=flights, drains=drains, breakers=breakers, survey=survey,
    )  # fmt: skip


def _build_gateway(
    settings: Settings,
    link: Link,
    line: Line,
    clock: RedisClock,
    catalog: Catalog,
    breakers: Breakers,
    chooser: Chooser,
    reader: RequestReader,
    client: EngineClient,
    admission: Admission,
    tenant_limits: TenantLimits,
    telemetry: Telemetry,
    drains: Drains,
) -> tuple[Gateway, Flights, Sharing]:
    """The story of a request, and what this process shares with others meanwhile."""
    cache, limits = settings.cache, settings.timeouts
    popularity = Popularity()
    hints = Hints()

    def landed(work: Work) -> None:
        telemetry.landed(work)
        chooser.landed(work)
        tenant_limits.spend(work.tenant, work.used)

    flights = Flights(
        Dispatcher(
            client,
            admission,
            Patience(limits.first_token, limits.between_tokens, limits.min_tokens_per_second),
            Standing(breakers),
            max_entry=cache.max_entry,
            salts=salts_of(groups(settings)),
        ),
        on_abandon=cache.on_abandon,
        abandon=cache.abandon,
        limit=cache.max_entry,
        landed=landed,
        most_abandoned={t.name: t.concurrent_requests for t in settings.tenant if t.concurrent_requests is not None},
    )
    liveness = Liveness(clock.monotonic)
    purges = Purges(line, lambda scope: on_purge(flights, hints, local, scope), alive=liveness.alive)
    local = LocalCopy(cache.local, clock.now, covered=purges.cover, alive=liveness.alive)
    shared = SharedFlights(line, wanted=flights.wanted)
    flights.share(shared, purges, liveness.alive)
    gateway = Gateway(
        reader=reader,
        chooser=chooser,
        store=EntryStore(line, purges, local, damaged=telemetry.entry_damaged),
        local=local,
        flights=flights,
        purges=purges,
        hints=hints,
        cache=CacheSettings(_tenant_caches(settings), cache.stale_if_error, cache.remote_content),
        brownout=Brownout(catalog, breakers),
        written=telemetry.written,
        hit=popularity.note,
        clock=clock.now,
    )
    hearing = Hearing(
        line=line, local=local, flights=flights, purges=purges, shared=shared, hints=hints, drains=drains,
        breakers=breakers,
    )  # fmt: skip
    listener = Listener(
        link,
        prefixes=heard(tenants(settings)),
        channel=shared.channel,
        hears=hearing,
        retry=cache.retry,
        clock=clock,
        liveness=liveness,
    )
    sharing = Sharing(
        line=line, purges=purges, shared=shared, listener=listener, flights=flights, popularity=popularity,
        limits=tenant_limits, drains=drains, hearing=hearing,
    )  # fmt: skip
    return gateway, flights, sharing


def _tenant_caches(settings: Settings) -> dict[str, TenantCache]:
    cache, own = settings.cache, {tenant.name: tenant for tenant in settings.tenant}
    caches = {}
    for name in tenants(settings):
        tenant = own.get(name, Tenant(name=name))
        caches[name] = TenantCache(
            cache.ttl if tenant.ttl is None else tenant.ttl, cache.store if tenant.store is None else tenant.store
        )
    return caches


def _quota(tenant: Tenant) -> Quota:
    return Quota(
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        concurrent_requests=tenant.concurrent_requests,
    )


def build_breakers(settings: Settings, line: Line, catalog: Catalog, clock: RedisClock) -> Breakers:
    """The breakers of the catalog's engines."""
    limits = settings.breaker
    return Breakers(
        line,
        Limits(limits.open_above, limits.close_below, limits.failures, limits.cooldown),
        known=catalog.engines.keys,
        # A long JSON answer must not keep the others waiting until its end: then one more may find out.
        lease=max(limits.cooldown, LEAST_LEASE),
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
                draft=engine.launch is not None and engine.launch.draft is not None,
                max_in_flight=engine.max_in_flight and max(1, engine.max_in_flight // settings.router.workers),
            )
            if known is not None and known.url == url:
                made.inherit(known)
            engines.append(made)
    return Catalog(models, engines)


def build_reader(settings: Settings, catalog: Catalog) -> RequestReader:
    """What understands requests."""
    return RequestReader(
        catalog=catalog,
        classify=Classifier.load().task,
        markers=Markers(settings.cache.context_open, settings.cache.context_close),
    )


def build_explainer(settings: Settings, reader: RequestReader, client: Client) -> Explainer:
    """What explains requests as the router of these settings would take them; `client` is Redis'."""
    stores = {name: cache.store for name, cache in _tenant_caches(settings).items()}
    return Explainer(reader=reader, client=client, stores=stores, remote=settings.cache.remote_content)
