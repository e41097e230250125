"""The audit in the admin API: who sent a request that changed something, and GET /admin/audit."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import Request

from router.api.admin.query import query_count
from router.errors import bad_request
from router.shared.audit.audit_log import Audit
from router.shared.audit.changes import ACTIONS, Change
from router.shared.audit.recorded import recorded
from router.store.admin.audit import MAX_PAGE, AuditQuery, check_audit, fetch_audit, is_entry_id
from router.store.admin.scan import RedisClient

_ACTOR: Final = "roundhouse.actor"  # the name in a request's scope
_DEFAULT_LIMIT: Final = 100

ResultT = TypeVar("ResultT")


def note_actor(request: Request, actor: str) -> None:
    """`actor`: as AdminAccess.check returns it."""
    request.scope[_ACTOR] = actor


class RequestAudit:
    """Records what administrators change with requests; AdminRoutes has noted who sent them."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def record(self, request: Request, change: Change) -> None:
        await self._audit.record(request.scope[_ACTOR], change)

    async def recorded(
        self,
        request: Request,
        operation: Awaitable[ResultT],
        changes: Callable[[ResultT], Sequence[Change]],
        stopped: Callable[[BaseException], Sequence[Change]],
    ) -> ResultT:
        """An operation that a failure, or the end of this process, may stop half-way; see `recorded`."""
        return await recorded(operation, partial(self.record, request), changes, stopped)


class AuditAdmin:
    """The handlers under /admin/audit; AdminRoutes authenticates their requests."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis

    async def list(self, request: Request) -> Any:
        """The newest changes first; `before` is the id of one, for the next page."""
        before, action = request.query_params.get("before"), request.query_params.get("action")
        if before is not None and not is_entry_id(before):
            raise bad_request("`before` must be the id of an entry.", param="before", code="invalid_query")
        if action is not None and action not in ACTIONS:
            message = f"`action` must be one of {', '.join(ACTIONS)}."
            raise bad_request(message, param="action", code="invalid_query")
        limit = query_count(request, "limit", default=_DEFAULT_LIMIT, largest=MAX_PAGE)
        return await fetch_audit(self._redis, AuditQuery(limit=limit, before=before, action=action))

    async def verify(self, _: Request) -> Any:
        """Whether the chain of the hashes holds."""
        return await check_audit(self._redis)
