"""The handler of GET /admin/tenants; AdminRoutes authenticates its requests."""

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request

from router.core.quota.budget import BudgetStatus, budget_status
from router.net.redis.errors import RedisBackendError
from router.settings import Settings
from router.shared.quota.rate_limits import TenantLimits
from router.store.admin.scan import RedisClient
from router.store.admin.tenants import fetch_tenants

_DEFAULT_DAYS: Final = "30"


class TenantAdmin:
    def __init__(
        self, settings: Settings, limits: TenantLimits, redis: RedisClient, is_redis_up: Callable[[], bool]
    ) -> None:
        self._is_redis_up = is_redis_up
        self._settings = settings
        self._limits = limits
        self._redis = redis

    async def show(self, request: Request) -> Any:
        """What tenants and their keys used in the last `days`."""
        days = request.query_params.get("days") or _DEFAULT_DAYS
        if not self._is_redis_up():  # the page is not to wait for the admin client's timeout
            raise RedisBackendError("it is down")
        return await fetch_tenants(self._redis, self._settings, days, self._read_budgets)

    async def _read_budgets(self, tenant: str) -> list[BudgetStatus]:
        use = await self._limits.budget_use(tenant)
        return budget_status(*use) if use is not None else []
