"""Finds entries by the text of their answers, and purges them.

A scan over the entries, which reads each answer. So it is bounded, and says whether it has searched everything. Only
stored answers have a text to search: one that is being generated is covered by the purge of an entry at its key.
"""

import asyncio
import heapq
from typing import Final, NamedTuple

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.endpoints.recording.answer_text import answer_contains, search_form
from router.core.plural import pluralize
from router.errors import bad_request
from router.store.admin.answers import read_bodies
from router.store.admin.entry_order import Order, rank_entries
from router.store.admin.listing import EntrySummary, fetch_summaries, memory_command
from router.store.admin.purge import PurgeResult, purge_keys
from router.store.admin.scan import OnProgress, RedisClient, execute_commands, no_progress, scan_entries

MAX_ENTRIES: Final = 100_000
"""Entries that a search looks at, by default."""

MAX_BYTES: Final = 1 << 30
"""Bytes of Redis' memory of the entries that a search looks at, by default."""

MAX_PURGED: Final = 1000
"""Entries that one search may purge: each is a record in the purge log, which keeps ten times as many."""

_MAX_INLINE: Final = 16 << 10  # bytes of an answer that is searched without a thread
_RANKED: Final = 1000  # keys whose amounts are read at a time


class GrepResult(msgspec.Struct, frozen=True, kw_only=True):
    """`entries`: the first of the `matches` entries that have the text.

    - `looked_at`: entries searched, of `bytes` of Redis' memory. `skipped` of them have no answer that can be searched:
      they are no entries, or too large.
    - `everything`: whether all entries that the filter matches were searched.
    - `purge`: None if nothing was to be purged.
    """

    entries: list[EntrySummary]
    matches: int
    looked_at: int
    bytes: int
    skipped: int
    everything: bool
    purge: PurgeResult | None = None


class Bounds(NamedTuple):
    entries: int = MAX_ENTRIES
    bytes: int = MAX_BYTES


class Found(NamedTuple):
    """The keys of all matches, and how far the search went; see GrepResult."""

    keys: list[str]
    looked_at: int
    bytes: int
    skipped: int
    everything: bool


async def search_answers(
    client: RedisClient, scope: EntryFilter, text: str, bounds: Bounds, progress: OnProgress = no_progress
) -> Found:
    """`progress` gets the number of entries searched. Raises RedisBackendError, and ApiError if there is no `text`."""
    wanted = search_form(text)
    if not wanted:
        raise bad_request("`text` must have a character that is not white space.", param="text", code="invalid_query")
    found: dict[str, None] = {}  # SCAN may return a key twice
    looked_at = size = skipped = 0
    async for keys in scan_entries(client, scope):
        sizes = await execute_commands(client, [memory_command(key) for key in keys])
        bytes_of = dict(zip(keys, sizes, strict=True))
        async for key, body in read_bodies(client, keys, sizes):
            # Checked before the next one, so that a search of exactly as many entries is complete.
            if looked_at >= bounds.entries or size >= bounds.bytes:
                return Found(list(found), looked_at, size, skipped, everything=False)
            looked_at += 1
            size += bytes_of[key] or 0
            if body is None:
                skipped += bytes_of[key] is not None  # else it is gone since SCAN returned it
            elif await _contains(body, wanted):
                found[key] = None
        progress(looked_at)
    return Found(list(found), looked_at, size, skipped, everything=True)


async def _contains(body: bytes, wanted: str) -> bool:
    if len(body) <= _MAX_INLINE:
        return answer_contains(body, wanted)
    # A large answer takes up to a second, in which the router that searches could serve nobody.
    return await asyncio.to_thread(answer_contains, body, wanted)


async def describe_found(client: RedisClient, found: Found, order: Order, limit: int) -> GrepResult:
    """Raises RedisBackendError."""
    first: list[tuple[float, str]] = []
    for start in range(0, len(found.keys), _RANKED):
        ranks = await rank_entries(client, order, found.keys[start : start + _RANKED])
        first = heapq.nsmallest(limit, [*ranks, *first])
    entries = [entry for entry in await fetch_summaries(client, [key for _, key in first]) if entry is not None]
    return GrepResult(
        entries=entries,
        matches=len(found.keys),
        looked_at=found.looked_at,
        bytes=found.bytes,
        skipped=found.skipped,
        everything=found.everything,
    )


async def purge_found(client: RedisClient, found: Found, progress: OnProgress = no_progress) -> PurgeResult:
    """Purges the matches by their keys; `progress` gets the number deleted.

    Raises RedisBackendError, and ApiError, before anything is purged, if there are more than MAX_PURGED.
    """
    # A few such searches would trim the log, and then every older entry counts as purged.
    if len(found.keys) > MAX_PURGED:
        raise bad_request(
            f"{pluralize(len(found.keys), 'entry', 'entries')} match, and one search may purge {MAX_PURGED:,} at most; "
            "nothing is purged. Search for more of the text, or purge a tenant, a model or a document.",
            code="too_many_matches",
        )
    return await purge_keys(client, found.keys, progress)
