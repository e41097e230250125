"""The handler of POST /admin/cache/grep; AdminRoutes authenticates its requests."""

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request

from router.api.admin.audit import RequestAudit
from router.api.inference.endpoint import read_body
from router.core.cache.entry_filter import MAX_PAGE_SIZE, EntryFilter, HexHash, KeyName
from router.core.plural import pluralize
from router.errors import bad_request
from router.shared.audit.changes import Change, entries_purged, purge_stopped
from router.store.admin.entry_order import Order
from router.store.admin.grep import MAX_ENTRIES, Bounds, Found, describe_found, purge_found, search_answers
from router.store.admin.purge import PurgeResult
from router.store.admin.scan import LastCount, RedisClient

log = logging.getLogger("roundhouse.admin")

_FILTERS: Final = ("tenant", "model", "system", "rag", "document")
_MAX_BODY: Final = 1 << 20


class GrepQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`purge`: whether all matches are purged, not only those that are listed."""

    text: str
    tenant: KeyName | None = None
    model: KeyName | None = None
    system: HexHash | None = None
    rag: HexHash | None = None
    document: str | None = None
    sort: Order = "age"
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = 100
    max_entries: Annotated[int, Meta(ge=1, le=10_000_000)] = MAX_ENTRIES
    purge: bool = False


_decode = msgspec.json.Decoder(GrepQuestion).decode


def grep_handler(redis: RedisClient, audit: RequestAudit) -> Callable[[Request], Awaitable[Any]]:
    async def grep(request: Request) -> Any:
        body = await read_body(request.scope["headers"], request.receive, _MAX_BODY)
        try:
            question = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"Invalid search: {error}", code="invalid_query") from None
        parts = EntryFilter(**{name: getattr(question, name) for name in _FILTERS})
        scope = EntryFilter(all=True) if parts.is_empty else parts
        found = await search_answers(redis, scope, question.text, Bounds(entries=question.max_entries))
        result = await describe_found(redis, found, question.sort, question.limit)
        if not question.purge:
            return result
        purged = await _purge(redis, audit, request, scope, question.text, found)
        entries, generations = pluralize(purged.entries, "entry", "entries"), pluralize(purged.claims, "generation")
        # Neither the words of an answer nor those of a document may be logged.
        filters = [f"{name}={getattr(scope, name)}" for name in _FILTERS[:-1] if getattr(scope, name) is not None]
        log.info("purged by text among %s: %s, %s in progress", " ".join(filters) or "all", entries, generations)
        return replace(result, purge=purged)

    return grep


async def _purge(
    redis: RedisClient, audit: RequestAudit, request: Request, scope: EntryFilter, text: str, found: Found
) -> PurgeResult:
    count = LastCount()

    def stopped(error: BaseException) -> list[Change]:
        return [purge_stopped(scope, count.value, error, text=text)] if count.value is not None else []

    return await audit.recorded(
        request,
        purge_found(redis, found, count),
        lambda done: [entries_purged(scope, done.entries, done.claims, recorded=done.recorded, text=text)],
        stopped,
    )
