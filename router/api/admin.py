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

from router.api.auth import AdminDoor
from router.api.engine_admin import EnginePages
from router.api.inference import ClientLeftError, read_body
from router.core.cache.entry_filter import MAX_PAGE, Scope, read_scope, scope_of, text_name
from router.errors import NOT_FOUND, ApiError, bad_request, unavailable
from router.flow.explain import Explainer, Question
from router.net.redis.errors import LinkError
from router.store.admin.listing import page, show
from router.store.admin.purge import Purged, purge
from router.store.admin.scan import Client
from router.store.admin.stats import stats

log = logging.getLogger("roundhouse.admin")

MAX_SCOPE: Final = 1 << 20
"""Bytes of a purge's body: a document may be named by its whole text."""

_PER_PAGE: Final = 100
_ENVELOPE: Final = 4096  # bytes around the body of a request that is to be explained
_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

Page = Callable[[Request], Awaitable[Any]]
"""Gives what is to be sent as JSON. Raises ApiError, LinkError, ClientLeftError."""


class Admin:
    """Everything under /admin/cache, and the door to all that is under /admin, the engines' pages too.

    - Nothing is read of a request, or told, before its key was checked.
    - Where Redis does not answer: 503, with Retry-After.
    - A purge that was begun is ended, whether or not its client waits.
    """

    def __init__(
        self, *, door: AdminDoor, client: Client, explainer: Explainer, engines: EnginePages, max_body: int
    ) -> None:
        """`max_body`: bytes of a request that may be explained."""
        self._door = door
        self._client = client
        self._explainer = explainer
        self._engines = engines
        self._max_body = max_body

    def routes(self) -> list[Route]:
        pages: list[tuple[str, str, Page]] = [
            ("GET", "/admin/cache/stats", self.stats),
            ("GET", "/admin/cache/entries", self.entries),
            ("GET", "/admin/cache/entries/{key}", self.entry),
            ("DELETE", "/admin/cache/entries/{key}", self.forget),
            ("POST", "/admin/cache/purge", self.purge),
            ("POST", "/admin/cache/explain", self.explain),
            ("GET", "/admin/engines", self._engines.engines),
            ("POST", "/admin/engines/{name}/drain", self._engines.drain),
            ("POST", "/admin/engines/{name}/resume", self._engines.resume),
        ]
        routes = [Route(path, self._behind_door(answer), methods=[method]) for method, path, answer in pages]
        # What is not there is not told apart from what is, to those without a key.
        nothing = self._behind_door(self._nothing)
        return [*routes, *[Route(path, nothing, methods=_METHODS) for path in ("/admin", "/admin/{path:path}")]]

    def _behind_door(self, answer: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answering(request: Request) -> Response:
            self._door.check(request.scope["headers"])
            try:
                told = await answer(request)
            except LinkError as error:
                raise unavailable(f"Redis does not answer ({error}).", code="redis_down") from None
            except ClientLeftError:
                return Response(status_code=400)  # nobody is there to read it
            return Response(msgspec.json.encode(told), media_type="application/json")

        return answering

    async def stats(self, _: Request) -> Any:
        return await stats(self._client)

    async def entries(self, request: Request) -> Any:
        """A page of the listing; `tenant`, `model`, `system`, `rag`, `document` narrow it down."""
        given = dict(request.query_params)
        limit, cursor = _limit(given.pop("limit", str(_PER_PAGE))), given.pop("cursor", None)
        return await page(self._client, scope_of(given), limit, cursor)

    async def entry(self, request: Request) -> Any:
        scope = _one(request.path_params)
        shown = await show(self._client, scope.key or "")
        if shown is None:
            raise _no_entry()
        return shown

    async def forget(self, request: Request) -> Any:
        """The same as a purge of one key; 404 where nothing was there, though what is in flight is forgotten too."""
        purged = await self._purged(_one(request.path_params))
        if not purged.entries and not purged.claims:
            raise _no_entry()
        return purged

    async def purge(self, request: Request) -> Any:
        return await self._purged(read_scope(await self._body(request, MAX_SCOPE)))

    async def _purged(self, scope: Scope) -> Purged:
        purged = await purge(self._client, scope)
        # A document may be named by its text, which is nothing for a log.
        named = scope if scope.document is None else replace(scope, document=text_name(scope.document))
        log.info("purged %s: %d entries, %d claims", named.record().decode(), purged.entries, purged.claims)
        return purged

    async def explain(self, request: Request) -> Any:
        body = await self._body(request, self._max_body + _ENVELOPE)
        try:
            question = msgspec.json.decode(body, type=Question)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"The question is not understood: {error}", code="invalid_question") from None
        return await self._explainer.explain(question)

    async def _nothing(self, _: Request) -> Any:
        raise HTTPException(404)

    async def _body(self, request: Request, limit: int) -> bytes:
        return await read_body(request.scope["headers"], request.receive, limit)


def _one(path: Mapping[str, Any]) -> Scope:
    return scope_of({"key": path["key"]})


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_PAGE):
        raise bad_request(f"`limit` must be a number from 1 to {MAX_PAGE}.", param="limit", code="invalid_query")
    return int(text)


def _no_entry() -> ApiError:
    return ApiError(404, "There is no such entry.", kind=NOT_FOUND, param="key", code="no_such_entry")
