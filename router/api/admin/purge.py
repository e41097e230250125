"""A purge that an administrator asks for: it is done, logged and recorded in the audit."""

import logging

from msgspec.structs import replace
from starlette.requests import Request

from router.api.admin.audit import RequestAudit
from router.core.cache.entry_filter import EntryFilter, text_document_name
from router.core.plural import pluralize
from router.shared.audit.changes import entries_purged, purge_stopped
from router.store.admin.purge import PurgeResult, purge
from router.store.admin.scan import LastCount, RedisClient

log = logging.getLogger("roundhouse.admin")


async def audited_purge(
    redis: RedisClient, audit: RequestAudit, request: Request, entry_filter: EntryFilter
) -> PurgeResult:
    """Raises RedisBackendError; some entries may be gone then, so that is recorded, too."""
    count = LastCount()
    result = await audit.recorded(
        request,
        purge(redis, entry_filter, count),
        lambda done: [entries_purged(entry_filter, done.entries, done.claims, recorded=done.recorded)],
        lambda error: [purge_stopped(entry_filter, count.value or 0, error)],
    )
    # The filter may hold the full text of a document, which must not be logged.
    loggable = (
        entry_filter
        if entry_filter.document is None
        else replace(entry_filter, document=text_document_name(entry_filter.document))
    )
    entries, generations = pluralize(result.entries, "entry", "entries"), pluralize(result.claims, "generation")
    log.info("purged %s: %s, %s in progress", loggable.to_json().decode(), entries, generations)
    return result
