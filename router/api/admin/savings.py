"""The handler of GET /admin/cache/savings; AdminRoutes authenticates its requests."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request

from router.errors import bad_request
from router.shared.accounting.retention import RETENTION_DAYS
from router.store.admin.savings import fetch_savings
from router.store.admin.scan import RedisClient

_DEFAULT_DAYS: Final = "30"


def savings_handler(redis: RedisClient) -> Callable[[Request], Awaitable[Any]]:
    async def savings(request: Request) -> Any:
        """The savings of the last `days`, of one `tenant` or of all."""
        days = _parse_days(request.query_params.get("days", _DEFAULT_DAYS))
        return await fetch_savings(redis, days, request.query_params.get("tenant"))

    return savings


def _parse_days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= RETENTION_DAYS):
        raise bad_request(f"`days` must be an integer from 1 to {RETENTION_DAYS}.", param="days", code="invalid_query")
    return int(text)
