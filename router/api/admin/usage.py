"""The usage of tenants: GET /admin/usage for administrators, and GET /v1/usage for a tenant, with its own key."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.core.quota.budget import BudgetStatus, budget_status
from router.errors import bad_request, unavailable
from router.net.redis.errors import RedisBackendError
from router.settings import Settings
from router.settings.tables import TenantSettings
from router.shared.quota.rate_limits import TenantLimits
from router.store.admin.scan import RedisClient
from router.store.admin.usage import UsageQuery, UsageRow, UsageSums, fetch_usage

_PARAMETERS: Final[Mapping[str, str]] = {
    "tenant": "tenant", "key": "key", "days": "days", "from": "first", "to": "last", "by": "by",
}  # fmt: skip


class TenantUsage(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """What a tenant sees of its own usage.

    - `limits`: those of its settings that are set; `budgets`: what is left of its budgets now.
    - For the others, see Usage.
    """

    object: str = "usage"
    tenant: str
    first: str
    last: str
    rows: list[UsageRow]
    total: UsageSums
    limits: dict[str, Any]
    budgets: list[BudgetStatus]


def usage_handler(redis: RedisClient) -> Callable[[Request], Awaitable[Any]]:
    """The handler of GET /admin/usage; AdminRoutes authenticates its requests."""

    async def usage(request: Request) -> Any:
        return await fetch_usage(redis, _query(request, without=()))

    return usage


def tenant_usage_route(auth: Authenticator, limits: TenantLimits, settings: Settings, redis: RedisClient) -> Route:
    shown = {tenant.name: _shown_limits(tenant) for tenant in settings.tenant}

    async def usage(request: Request) -> Response:
        tenant = auth.authenticate(request.scope["headers"]).tenant
        query = replace(_query(request, without=("tenant",)), tenant=tenant)
        try:
            found = await fetch_usage(redis, query)
        except RedisBackendError:
            raise unavailable("The usage is not available: Redis does not answer.", code="redis_down") from None
        use = await limits.budget_use(tenant)
        answer = TenantUsage(
            tenant=tenant,
            first=found.first,
            last=found.last,
            rows=found.rows,
            total=found.total,
            limits=shown.get(tenant, {}),
            budgets=budget_status(*use) if use is not None else [],
        )
        return Response(msgspec.json.encode(answer), media_type="application/json")

    return Route("/v1/usage", usage, methods=["GET"])


def _shown_limits(tenant: TenantSettings) -> dict[str, Any]:
    values = {
        "models": tenant.models,
        "highest_priority": tenant.highest_priority,
        "requests_per_minute": tenant.requests_per_minute,
        "tokens_per_minute": tenant.tokens_per_minute,
        "concurrent_requests": tenant.concurrent_requests,
    }
    return {name: value for name, value in values.items() if value is not None}


def _query(request: Request, *, without: tuple[str, ...]) -> UsageQuery:
    """Raises ApiError (400)."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in _PARAMETERS or name in without:
            known = ", ".join(known for known in _PARAMETERS if known not in without)
            raise bad_request(
                f"Unknown parameter `{name[:64]}`; the parameters are {known}.", param=name[:64], code="invalid_query"
            )
        given[_PARAMETERS[name]] = value
    return UsageQuery(**given)
