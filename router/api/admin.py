"""The pages of administrators: what the cache holds, why a request hits or misses, and forgetting."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.auth import AdminAuthenticator
from router.api.engine_admin import EngineAdmin
from router.api.inference import ClientDisconnectedError, read_body
from router.core.cache.entry_filter import (
    MAX_PAGE_SIZE,
    EntryFilter,
    parse_listing_filter,
    parse_purge_filter,
    text_document_name,
)
from router.errors import NOT_FOUND, ApiError, bad_request, unavailable
from router.flow.explain import Explainer, ExplainRequest
from router.net.redis.errors import RedisBackendError
from router.store.admin.listing import fetch_detail, list_entries
from router.store.admin.purge import PurgeResult, purge
from router.store.admin.scan import RedisClient
from router.store.admin.stats import collect_stats

log = logging.getLogger("roundhouse.admin")

MAX_FILTER_BYTES: Final = 1 << 20
"""Bytes of a purge's body: a document may be named by its whole text."""

_DEFAULT_LIMIT: Final = 100
_EXPLAIN_OVERHEAD: Final = 4096  # bytes around the body of a request that is to be explained
_ALL_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

AdminHandler = Callable[[Request], Awaitable[Any]]
"""Gives what is to be sent as JSON. Raises ApiError, LinkError, ClientLeftError."""


class AdminRoutes:
    """Everything under /admin/cache, and the door to all that is under /admin, the engines' pages too.

    - Nothing is read of a request, or told, before its key was checked.
    - Where Redis does not answer: 503, with Retry-After.
    - A purge that was begun is ended, whether or not its client waits.
    """

    def __init__(
        self,
        *,
        authenticator: AdminAuthenticator,
        redis: RedisClient,
        explainer: Explainer,
        engine_admin: EngineAdmin,
        max_body: int,
    ) -> None:
        """`max_body`: bytes of a request that may be explained."""
        self._authenticator = authenticator
        self._redis = redis
        self._explainer = explainer
        self._engine_admin = engine_admin
        self._max_body = max_body

    def routes(self) -> list[Route]:
        pages: list[tuple[str, str, AdminHandler]] = [
            ("GET", "/admin/cache/stats", self.stats),
            ("GET", "/admin/cache/entries", self.list_entries),
            ("GET", "/admin/cache/entries/{key}", self.get_entry),
            ("DELETE", "/admin/cache/entries/{key}", self.delete_entry),
            ("POST", "/admin/cache/purge", self.purge),
            ("POST", "/admin/cache/explain", self.explain),
            ("GET", "/admin/engines", self._engine_admin.list_engines),
            ("POST", "/admin/engines/{name}/drain", self._engine_admin.drain),
            ("POST", "/admin/engines/{name}/resume", self._engine_admin.resume),
        ]
        routes = [Route(path, self._authenticated(answer), methods=[method]) for method, path, answer in pages]
        # What is not there is not told apart from what is, to those without a key.
        nothing = self._authenticated(self._not_found)
        return [*routes, *[Route(path, nothing, methods=_ALL_METHODS) for path in ("/admin", "/admin/{path:path}")]]

    def _authenticated(self, handler: AdminHandler) -> Callable[[Request], Awaitable[Response]]:
        async def answering(request: Request) -> Response:
            self._authenticator.check(request.scope["headers"])
            try:
                told = await handler(request)
            except RedisBackendError as error:
                raise unavailable(f"Redis does not answer ({error}).", code="redis_down") from None
            except ClientDisconnectedError:
                return Response(status_code=400)  # nobody is there to read it
            return Response(msgspec.json.encode(told), media_type="application/json")

        return answering

    async def stats(self, _: Request) -> Any:
        return await collect_stats(self._redis)

    async def list_entries(self, request: Request) -> Any:
        """A page of the listing; `tenant`, `model`, `system`, `rag`, `document` narrow it down."""
        given = dict(request.query_params)
        limit, cursor = _parse_limit(given.pop("limit", str(_DEFAULT_LIMIT))), given.pop("cursor", None)
        return await list_entries(self._redis, parse_listing_filter(given), limit, cursor)

    async def get_entry(self, request: Request) -> Any:
        scope = _filter_for_key(request.path_params)
        shown = await fetch_detail(self._redis, scope.key or "")
        if shown is None:
            raise _entry_not_found()
        return shown

    async def delete_entry(self, request: Request) -> Any:
        """The same as a purge of one key; 404 where nothing was there, though what is in flight is forgotten too."""
        purged = await self._purge_and_log(_filter_for_key(request.path_params))
        if not purged.entries and not purged.claims:
            raise _entry_not_found()
        return purged

    async def purge(self, request: Request) -> Any:
        return await self._purge_and_log(parse_purge_filter(await self._read_body(request, MAX_FILTER_BYTES)))

    async def _purge_and_log(self, entry_filter: EntryFilter) -> PurgeResult:
        purged = await purge(self._redis, entry_filter)
        # A document may be named by its text, which is nothing for a log.
        named = (
            entry_filter
            if entry_filter.document is None
            else replace(entry_filter, document=text_document_name(entry_filter.document))
        )
        log.info("purged %s: %d entries, %d claims", named.to_json().decode(), purged.entries, purged.claims)
        return purged

    async def explain(self, request: Request) -> Any:
        body = await self._read_body(request, self._max_body + _EXPLAIN_OVERHEAD)
        try:
            question = msgspec.json.decode(body, type=ExplainRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"The question is not understood: {error}", code="invalid_question") from None
        return await self._explainer.explain(question)

    async def _not_found(self, _: Request) -> Any:
        raise HTTPException(404)

    async def _read_body(self, request: Request, limit: int) -> bytes:
        return await read_body(request.scope["headers"], request.receive, limit)


def _filter_for_key(path: Mapping[str, Any]) -> EntryFilter:
    return parse_listing_filter({"key": path["key"]})


def _parse_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_PAGE_SIZE):
        raise bad_request(f"`limit` must be a number from 1 to {MAX_PAGE_SIZE}.", param="limit", code="invalid_query")
    return int(text)


def _entry_not_found() -> ApiError:
    return ApiError(404, "There is no such entry.", kind=NOT_FOUND, param="key", code="no_such_entry")
