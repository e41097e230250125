"""The objects behind /admin and /dashboard."""

import time
from functools import partial

from starlette.routing import Route

from router.api.access.admin_access import AdminAccess, LinkStore
from router.api.access.auth import AdminAuthenticator
from router.api.access.sessions import Sessions
from router.api.admin.adapter_admin import AdapterAdmin
from router.api.admin.engine_admin import EngineAdmin
from router.api.admin.key_admin import KeyAdmin
from router.api.admin.routes import AdminRoutes
from router.api.admin.status import StatusAdmin
from router.api.admin.tenants import TenantAdmin
from router.api.dashboard.routes import DashboardRoutes
from router.api.ops.home import home_route
from router.core.types import AUTO
from router.dashboard.pages import dashboard_page, home_page
from router.flow.explain.choice_explainer import ChoiceExplainer
from router.flow.explain.explainer import Explainer
from router.flow.lookup import cache_policy
from router.flow.request_resolver import RequestResolver
from router.flow.tenant_rules import TenantRules
from router.process.process_state import ProcessState
from router.process.wiring.audit import build_audit
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.redis_services import RedisServices
from router.process.wiring.status import Status, prefix_statuses
from router.settings import Settings, tenants
from router.store.admin.scan import RedisClient


def build_admin_routes(
    settings: Settings,
    process_state: ProcessState,
    services: RedisServices,
    engines: EnginePool,
    resolver: RequestResolver,
    rules: TenantRules,
    status: Status,
    admin_authenticator: AdminAuthenticator,
) -> list[Route]:
    redis, records, client = services.redis, services.records, services.redis.admin_client
    access = _build_access(settings, process_state, services, admin_authenticator)
    router = f"{process_state.identity.host}:{process_state.identity.pid}"
    audit = build_audit(settings, router, redis, process_state.telemetry.record_lost_audit)
    choice_explainer = ChoiceExplainer(
        router=router,
        resolver=resolver,
        selector=engines.selector,
        catalog=engines.catalog,
        rules=rules,
        tenants=tenants(settings),
        breaker_state=engines.breakers.state,
        clock=time.perf_counter,
    )
    max_body = settings.router.max_body
    admin = AdminRoutes(
        access=access,
        redis=client,
        explainer=build_explainer(settings, resolver, client),
        engine_admin=EngineAdmin(
            engines.catalog,
            records.drains,
            status.gpus,
            prefix_statuses(process_state),
            choice_explainer,
            audit,
            max_body=max_body,
        ),
        key_admin=KeyAdmin(settings, client, audit),
        adapter_admin=AdapterAdmin(engines.catalog, engines.client, engines.model_lists, client, audit),
        status_admin=StatusAdmin(status.reader, status.batches),
        tenant_admin=TenantAdmin(settings, process_state.tenant_limits, client, lambda: redis.pipeline.up),
        audit=audit,
        max_body=max_body,
    )
    dashboard = DashboardRoutes(
        access=access,
        limiter=process_state.login_limiter,
        hub=status.event_hub,
        render_page=partial(dashboard_page, auth_mode=settings.auth_mode, tenants=tenants(settings)),
    )
    model = AUTO if any(model.auto for model in settings.model) else settings.model[0].name
    home = home_route(partial(home_page, auth_mode=settings.auth_mode, model=model))
    return [*admin.routes(), *dashboard.routes(), home]


def _build_access(
    settings: Settings, process_state: ProcessState, services: RedisServices, authenticator: AdminAuthenticator
) -> AdminAccess:
    redis = services.redis
    return AdminAccess(
        authenticator,
        Sessions(settings.auth.admin_keys, lambda: process_state.session_secret.value, redis.clock.now),
        partial(process_state.session_secret.refresh, redis.pipeline),
        LinkStore(
            partial(process_state.sign_in_links.issue, redis.pipeline),
            partial(process_state.sign_in_links.redeem, redis.pipeline),
        ),
    )


def build_explainer(settings: Settings, resolver: RequestResolver, client: RedisClient) -> Explainer:
    max_conversation = settings.router.max_body if settings.responses.ttl else None
    return Explainer(resolver=resolver, client=client, policy=cache_policy(settings), max_conversation=max_conversation)
