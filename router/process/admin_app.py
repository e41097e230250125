"""Creates the objects behind /admin and /dashboard, and connects them; app.py creates all others."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from starlette.routing import Route

from router.api.adapter_admin import AdapterAdmin
from router.api.admin import AdminRoutes
from router.api.admin_access import AdminAccess
from router.api.auth import AdminAuthenticator
from router.api.dashboard import DashboardRoutes
from router.api.engine_admin import EngineAdmin
from router.api.event_hub import EventHub
from router.api.key_admin import KeyAdmin
from router.api.sessions import Sessions
from router.api.status import HOUR, StatusAdmin, StatusReader
from router.core.routing.prefill import PrefixIndexStatus
from router.dashboard.pages import dashboard_page
from router.flow.explain import Explainer
from router.flow.explain_choice import ChoiceExplainer
from router.flow.replicas.router_snapshot import ProcessLoad, take_snapshot
from router.flow.replicas.status_publisher import StatusPublisher
from router.net.redis.clock import RedisClock
from router.net.redis.connect import open_client
from router.net.redis.pipeline import RedisPipeline
from router.process.runtime import ProcessState
from router.settings import Settings, tenants
from router.shared.connection.redis_writes import RedisWrites
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.breakers import Breakers
from router.shared.engines.drains import Drains
from router.shared.status.latest_requests import MAX_REQUESTS
from router.shared.status.router_snapshots import RouterSnapshot
from router.store.admin.scan import RedisClient
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.model_lists import ModelListReader

ADMIN_REDIS_TIMEOUT: Final = 5.0
"""Seconds that Redis has to reply to an admin request."""


class Admin(NamedTuple):
    """What a Runtime needs of it."""

    routes: list[Route]
    redis: RedisClient
    event_hub: EventHub
    status_publisher: StatusPublisher


def build_admin(
    settings: Settings,
    process_state: ProcessState,
    *,
    catalog: Catalog,
    breakers: Breakers,
    drains: Drains,
    pipeline: RedisPipeline,
    redis_writes: RedisWrites,
    clock: RedisClock,
    stored_keys: StoredKeys,
    explainer: Callable[[RedisClient], Explainer],
    choice_explainer: ChoiceExplainer,
    client: EngineClient,
    model_lists: ModelListReader,
) -> Admin:
    # A client of its own: an admin command may be slow, and the pipeline has the short timeout of a look-up.
    redis = open_client(settings.redis_url, timeout=ADMIN_REDIS_TIMEOUT)
    drafts = configured_drafts(settings)

    def prefix_status(url: str) -> PrefixIndexStatus:
        return process_state.prefills.of(url).status(time.perf_counter())

    def snapshot() -> RouterSnapshot:
        load = ProcessLoad(
            in_flight=process_state.in_flight(),
            queued=process_state.queue_lengths.total,
            draining=process_state.draining,
        )
        return take_snapshot(process_state.identity, load, catalog, breakers.state, drafts, prefix_status, clock.now())

    reader = StatusReader(
        redis=redis,
        pipeline=pipeline,
        redis_writes=redis_writes,
        redis_url=settings.redis_url,
        clock=clock.now,
        take_snapshot=snapshot,
    )
    sessions = Sessions(settings.auth.admin_keys, lambda: process_state.session_secret.value, clock.now)
    access = AdminAccess(
        AdminAuthenticator(settings.auth.admin_keys, stored_keys.record_use),
        sessions,
        partial(process_state.session_secret.refresh, pipeline),
    )
    event_hub = EventHub(reader.status, partial(reader.history, HOUR), partial(reader.latest_requests, MAX_REQUESTS))
    admin = AdminRoutes(
        access=access,
        redis=redis,
        explainer=explainer(redis),
        engine_admin=EngineAdmin(catalog, drains, prefix_status, choice_explainer, max_body=settings.router.max_body),
        key_admin=KeyAdmin(settings, redis),
        adapter_admin=AdapterAdmin(catalog, client, model_lists, redis),
        status_admin=StatusAdmin(reader),
        max_body=settings.router.max_body,
    )
    dashboard = DashboardRoutes(
        access=access,
        limiter=process_state.login_limiter,
        hub=event_hub,
        render_page=partial(dashboard_page, auth_mode=settings.auth_mode, tenants=tenants(settings)),
    )
    status_publisher = StatusPublisher(
        pipeline=pipeline,
        clock=clock.now,
        take_snapshot=snapshot,
        pending_traffic=process_state.pending_traffic,
        requests=process_state.latest_requests,
        set_observer=process_state.telemetry.set_observer,
    )
    return Admin([*admin.routes(), *dashboard.routes()], redis, event_hub, status_publisher)


def configured_drafts(settings: Settings) -> Mapping[str, str]:
    """The draft model, or the method of speculation without one, of each engine that has any; by the engine's name."""
    drafts = {
        engine.name: (engine.launch.draft, engine.launch.speculation_method)
        for engine in settings.engine
        if engine.launch
    }
    return {name: draft or method for name, (draft, method) in drafts.items() if method is not None}
