"""The admin API: the cache's statistics, entries and purges, why a request hits or misses, and the routes of others."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.access.admin_access import SIGN_IN_PATH, AdminAccess
from router.api.admin.adapter_admin import AdapterAdmin
from router.api.admin.audit import AuditAdmin, RequestAudit, note_actor
from router.api.admin.engine_admin import EngineAdmin
from router.api.admin.explained_request import EXPLAIN_OVERHEAD, decode_explained
from router.api.admin.grep import grep_handler
from router.api.admin.key_admin import KeyAdmin
from router.api.admin.purge import audited_purge
from router.api.admin.query import query_count
from router.api.admin.savings import savings_handler
from router.api.admin.status import StatusAdmin
from router.api.admin.tenants import TenantAdmin
from router.api.admin.usage import usage_handler
from router.api.allowed_methods import FallbackRoute, allowed_methods
from router.api.inference.endpoint import ClientDisconnectedError, read_body
from router.core.cache.entry_filter import (
    MAX_PAGE_SIZE,
    EntryFilter,
    parse_listing_filter,
    parse_purge_filter,
)
from router.errors import NOT_FOUND, ApiError, unavailable
from router.flow.explain.explainer import Explainer, ExplainRequest
from router.net.redis.errors import CommandRefusedError, RedisBackendError, WritesRefusedError
from router.shared.credentials.sign_in_links import LINK_SECONDS
from router.store.admin.entry_order import parse_order
from router.store.admin.listing import fetch_detail, list_entries
from router.store.admin.scan import RedisClient
from router.store.admin.stats import collect_stats
from router.upstream.adapter_changes import LOAD_PATH, UNLOAD_PATH

MAX_FILTER_BYTES: Final = 1 << 20
"""Bytes of a purge request: its filter may name a document by the document's full text."""

_DEFAULT_LIMIT: Final = 100
_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_ALL_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

AdminHandler = Callable[[Request], Awaitable[Any]]
"""Returns what is sent as JSON. Raises ApiError, RedisBackendError, ClientDisconnectedError."""


class AdminRoutes:
    """Everything under /admin/cache, and the authentication for everything under /admin, also for the other routes.

    - The key or session is checked before anything of a request is read or any route is revealed.
    - If Redis does not answer: 503, with Retry-After.
    - A purge that has started is completed, even if its client disconnects.
    """

    def __init__(
        self,
        *,
        access: AdminAccess,
        redis: RedisClient,
        explainer: Explainer,
        engine_admin: EngineAdmin,
        key_admin: KeyAdmin,
        adapter_admin: AdapterAdmin,
        status_admin: StatusAdmin,
        tenant_admin: TenantAdmin,
        audit: RequestAudit,
        max_body: int,
    ) -> None:
        self._access = access
        self._redis = redis
        self._explainer = explainer
        self._engine_admin = engine_admin
        self._key_admin = key_admin
        self._adapter_admin = adapter_admin
        self._status_admin = status_admin
        self._tenant_admin = tenant_admin
        self._audit = audit
        self._audit_admin = AuditAdmin(redis)
        self._max_body = max_body

    def routes(self) -> list[Route]:
        handlers: list[tuple[str, str, AdminHandler]] = [
            ("GET", "/admin/cache/stats", self.stats),
            ("GET", "/admin/cache/savings", savings_handler(self._redis)),
            ("GET", "/admin/usage", usage_handler(self._redis)),
            ("GET", "/admin/tenants", self._tenant_admin.show),
            ("GET", "/admin/cache/entries", self.list_entries),
            ("GET", "/admin/cache/entries/{key}", self.get_entry),
            ("DELETE", "/admin/cache/entries/{key}", self.delete_entry),
            ("POST", "/admin/cache/purge", self.purge),
            ("POST", "/admin/cache/grep", grep_handler(self._redis, self._audit)),
            ("POST", "/admin/cache/explain", self.explain),
            ("GET", "/admin/cache/explain", self.explain_sent),
            ("GET", "/admin/audit", self._audit_admin.list),
            ("GET", "/admin/audit/verify", self._audit_admin.verify),
            ("GET", "/admin/status", self._status_admin.status),
            ("GET", "/admin/history", self._status_admin.history),
            ("GET", "/admin/requests", self._status_admin.requests),
            ("GET", "/admin/batches", self._status_admin.batches),
            ("GET", "/admin/engines", self._engine_admin.list_engines),
            ("POST", "/admin/engines/explain", self._engine_admin.explain),
            ("POST", "/admin/engines/{name}/drain", self._engine_admin.drain),
            ("POST", "/admin/engines/{name}/resume", self._engine_admin.resume),
            ("POST", "/admin/engines/{name}/sleep", self._engine_admin.sleep),
            ("POST", "/admin/engines/{name}/wake", self._engine_admin.wake),
            ("POST", "/admin/sign-in-links", self.make_sign_in_link),
            ("GET", "/admin/keys", self._key_admin.list),
            ("POST", "/admin/keys", self._key_admin.create),
            ("DELETE", "/admin/keys/{key}", self._key_admin.revoke),
            ("POST", LOAD_PATH, self._adapter_admin.load),
            ("POST", UNLOAD_PATH, self._adapter_admin.unload),
        ]
        routes = [Route(path, self._authenticated(handler), methods=[method]) for method, path, handler in handlers]
        # Without a key, a path that does not exist must look like one that does: 401 for both.
        not_found = self._authenticated(self._not_found)
        rest = [FallbackRoute(path, not_found, methods=_ALL_METHODS) for path in ("/admin", "/admin/{path:path}")]
        return [*routes, *rest]

    def _authenticated(self, handler: AdminHandler) -> Callable[[Request], Awaitable[Response]]:
        async def authenticated(request: Request) -> Response:
            note_actor(request, await self._access.check(request))
            try:
                result = await handler(request)
            except WritesRefusedError as error:
                raise unavailable(f"{error}.", code="redis_refuses_writes") from None
            except CommandRefusedError as error:
                raise unavailable(f"Redis refuses a command: {error}.", code="redis_down") from None
            except RedisBackendError as error:
                raise unavailable(f"Redis does not answer ({error}).", code="redis_down") from None
            except ClientDisconnectedError:
                return Response(status_code=400)  # is never read
            return Response(msgspec.json.encode(result), headers=_HEADERS, media_type="application/json")

        return authenticated

    async def stats(self, _: Request) -> Any:
        return await collect_stats(self._redis)

    async def list_entries(self, request: Request) -> Any:
        """A page of the listing; `tenant`, `model`, `system`, `rag`, `document` filter it, and `sort` orders it."""
        params = dict(request.query_params)
        limit = query_count(request, "limit", default=_DEFAULT_LIMIT, largest=MAX_PAGE_SIZE)
        params.pop("limit", None)
        cursor, order = params.pop("cursor", None), parse_order(params.pop("sort", "key"))
        return await list_entries(self._redis, parse_listing_filter(params), limit, cursor, order)

    async def get_entry(self, request: Request) -> Any:
        entry_filter = _filter_for_key(request.path_params)
        detail = await fetch_detail(self._redis, entry_filter.key or "")
        if detail is None:
            raise _entry_not_found()
        return detail

    async def delete_entry(self, request: Request) -> Any:
        """A purge of one key: it also covers an in-flight generation. 404 if there was neither entry nor claim."""
        result = await audited_purge(self._redis, self._audit, request, _filter_for_key(request.path_params))
        if not result.entries and not result.claims:
            raise _entry_not_found()
        return result

    async def purge(self, request: Request) -> Any:
        entry_filter = parse_purge_filter(await self._read_body(request, MAX_FILTER_BYTES))
        return await audited_purge(self._redis, self._audit, request, entry_filter)

    async def explain(self, request: Request) -> Any:
        body = await self._read_body(request, self._max_body + EXPLAIN_OVERHEAD)
        return await self._explainer.explain(decode_explained(body, ExplainRequest))

    async def explain_sent(self, request: Request) -> Any:
        """A request that was sent, by its `id`."""
        row = await self._status_admin.request_by_id(request)
        return await self._explainer.explain_sent(row)

    async def make_sign_in_link(self, request: Request) -> Any:
        """`path` goes after the router's URL: a browser does not send what follows `#`, so no log has it."""
        token = await self._access.make_link(request)
        return {"path": f"{SIGN_IN_PATH}#token={token}", "expires_in": LINK_SECONDS}

    async def _not_found(self, request: Request) -> Any:
        raise HTTPException(405 if allowed_methods(request.app.routes, request.scope) else 404)

    async def _read_body(self, request: Request, limit: int) -> bytes:
        return await read_body(request.scope["headers"], request.receive, limit)


def _filter_for_key(path: Mapping[str, Any]) -> EntryFilter:
    return parse_listing_filter({"key": path["key"]})


def _entry_not_found() -> ApiError:
    return ApiError(404, "No entry is stored at this key.", kind=NOT_FOUND, param="key", code="no_such_entry")
