"""Statistics of the cache: how many entries there are by tenant and model, and which have the most hits.

All data come from Redis, so the router and the command line show the same. While entries are written, counts are as
exact as SCAN.
"""

from typing import Any, Final

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import (
    CLAIMS_PATTERN,
    FLIGHTS_PATTERN,
    HITS_PATTERN,
    RESPONSE_SIZES_PATTERN,
    hits_key,
    response_tenant,
)
from router.shared.responses.response_index import BYTES_FIELD, COUNT_FIELD
from router.store.admin.field_values import decode_text, parse_number
from router.store.admin.listing import EntrySummary, fetch_summaries, memory_command
from router.store.admin.scan import (
    OnProgress,
    RedisClient,
    execute_commands,
    map_redis_errors,
    no_progress,
    read_redis_clock,
    read_server_info,
    scan_entries,
    scan_keys,
)

MEASURED: Final = 100
"""Entries per tenant and model whose memory is measured; the memory of the others is extrapolated from these."""


class EntryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`stale` of the `entries` are older than their time to live; `bytes` of Redis' memory, extrapolated from
    `measured`.

    - `tokens`: generated tokens of all entries, from the entries themselves.
    - `bytes_per_token`: Redis' memory per generated token, over the measured entries that have any; None without one.
      Embeddings, and responses of engines that report no usage, have none: they count in `bytes` and not here. The
      total is weighted by the tokens of each tenant and model, not by how many of its entries were measured.
    """

    entries: int
    stale: int
    tokens: int
    bytes: int
    measured: int
    bytes_per_token: float | None


class KeptCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Kept responses of /v1/responses: how many, and their bytes without what Redis takes beside them."""

    count: int
    bytes: int


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """`tenants`: by tenant and model. `oldest`, `newest` in seconds since the epoch; None where there is no entry.

    `responses`: those that are kept, by tenant. One that has expired counts until its tenant keeps another one.

    `redis`: for each server, its used memory and limit in bytes (None for no limit), its eviction policy, and how many
    keys it has evicted since it started.
    """

    total: EntryCounts
    tenants: dict[str, dict[str, EntryCounts]]
    oldest: float | None
    newest: float | None
    claims: int
    flights: int
    responses: dict[str, KeptCounts]
    redis: list[dict[str, Any]]


class TopEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry with `hits` hits, which `saved` tokens from being generated; None if it is gone."""

    key: str
    hits: int
    saved: int | None
    entry: EntrySummary | None


class _CountsBuilder:
    """Counters for a tenant and model. `answer_bytes` and `answer_tokens` are of measured entries with tokens."""

    __slots__ = ("answer_bytes", "answer_tokens", "bytes", "entries", "measured", "stale", "tokens")

    def __init__(self) -> None:
        self.entries = self.stale = self.tokens = 0
        self.measured = self.bytes = self.answer_bytes = self.answer_tokens = 0

    def counts(self) -> EntryCounts:
        return EntryCounts(
            entries=self.entries,
            stale=self.stale,
            tokens=self.tokens,
            bytes=self.bytes * self.entries // (self.measured or 1),  # extrapolated
            measured=self.measured,
            bytes_per_token=_ratio(self.answer_bytes, self.answer_tokens),
        )


def _ratio(size: float, tokens: int) -> float | None:
    return round(size / tokens, 2) if tokens else None


def _sum_counts(counts: list[EntryCounts]) -> EntryCounts:
    weights = [(amount.bytes_per_token, amount.tokens) for amount in counts if amount.bytes_per_token is not None]
    return EntryCounts(
        entries=sum(amount.entries for amount in counts),
        stale=sum(amount.stale for amount in counts),
        tokens=sum(amount.tokens for amount in counts),
        bytes=sum(amount.bytes for amount in counts),
        measured=sum(amount.measured for amount in counts),
        bytes_per_token=_ratio(sum(each * tokens for each, tokens in weights), sum(tokens for _, tokens in weights)),
    )


async def collect_stats(client: RedisClient, progress: OnProgress = no_progress) -> CacheStats:
    """Count everything; `progress` gets the number of entries. Raises RedisBackendError."""
    groups: dict[str, dict[str, _CountsBuilder]] = {}
    counted = 0
    oldest = newest = None
    clock = await read_redis_clock(client)
    async for keys in scan_entries(client, EntryFilter(all=True)):
        now = clock.now()
        replies = await execute_commands(
            client, [("HMGET", key, "created", "ttl", "completion_tokens") for key in keys]
        )
        entries = []
        for key, values in zip(keys, replies, strict=True):
            parts = KeyParts.parse(key)
            group = groups.setdefault(parts.tenant, {}).setdefault(parts.model, _CountsBuilder())
            created, ttl, completion_tokens = map(parse_number, values or (None, None, None))
            tokens = int(completion_tokens or 0)
            group.entries += 1
            group.stale += created is not None and ttl is not None and now > created + ttl
            group.tokens += tokens
            if created is not None:
                oldest = min(created, oldest or created)
                newest = max(created, newest or created)
            entries.append((key, group, tokens))
        await _measure_memory(client, entries)
        counted += len(keys)
        progress(counted)
    tenants = {
        tenant: {model: group.counts() for model, group in sorted(models.items())}
        for tenant, models in sorted(groups.items())
    }
    return CacheStats(
        total=_sum_counts([amount for models in tenants.values() for amount in models.values()]),
        tenants=tenants,
        oldest=oldest,
        newest=newest,
        claims=await _count_keys(client, CLAIMS_PATTERN),
        flights=await _count_keys(client, FLIGHTS_PATTERN),
        responses=await _kept_responses(client),
        redis=await _server_info(client),
    )


async def _measure_memory(client: RedisClient, entries: list[tuple[str, _CountsBuilder, int]]) -> None:
    chosen = []
    for key, group, tokens in entries:
        if group.measured < MEASURED:
            group.measured += 1
            chosen.append((key, group, tokens))
    sizes = await execute_commands(client, [memory_command(key) for key, _, _ in chosen])
    for (_, group, tokens), size in zip(chosen, sizes, strict=True):
        group.bytes += size or 0
        if tokens and size:
            group.answer_bytes += size
            group.answer_tokens += tokens


async def _count_keys(client: RedisClient, pattern: str) -> int:
    return sum([len(batch) async for batch in scan_keys(client, pattern)])


async def _kept_responses(client: RedisClient) -> dict[str, KeptCounts]:
    """From what the index of each tenant counts: there may be many thousands."""
    found: dict[str, KeptCounts] = {}
    async for keys in scan_keys(client, RESPONSE_SIZES_PATTERN):
        replies = await execute_commands(client, [("HMGET", key, COUNT_FIELD, BYTES_FIELD) for key in keys])
        for key, values in zip(keys, replies, strict=True):
            count, size = map(parse_number, values or (None, None))
            if count and size is not None:
                found[response_tenant(key)] = KeptCounts(count=int(count), bytes=int(size))
    return dict(sorted(found.items()))


async def _server_info(client: RedisClient) -> list[dict[str, Any]]:
    return [
        {
            "version": info.get("redis_version"),
            "memory": info.get("used_memory"),
            "max_memory": info.get("maxmemory") or None,
            "policy": info.get("maxmemory_policy"),
            "evicted": info.get("evicted_keys"),
        }
        for info in await read_server_info(client)
    ]


async def top_entries(client: RedisClient, limit: int, tenant: str | None = None) -> list[TopEntry]:
    """The entries with the most hits, of one tenant or of all. Raises RedisBackendError."""
    if tenant is not None:
        hit_keys = [hits_key(tenant)]
    else:
        hit_keys = sorted({name async for batch in scan_keys(client, HITS_PATTERN) for name in batch})
    ranked: dict[str, int] = {}
    # The top entries of all tenants are among the top entries of each.
    for name in hit_keys:
        with map_redis_errors():
            best = await client.zrevrange(name, 0, limit - 1, withscores=True)
        ranked |= {decode_text(key) or "": int(hits) for key, hits in best}
    # The keys come from a sorted set, and `fetch_summaries` needs valid ones.
    keys_of = [key for key in ranked if EntryFilter(all=True).matches(key)]
    chosen = sorted(keys_of, key=lambda key: (-ranked[key], key))[:limit]
    return [
        TopEntry(key=key, hits=ranked[key], saved=_saved_tokens(entry, ranked[key]), entry=entry)
        for key, entry in zip(chosen, await fetch_summaries(client, chosen), strict=True)
    ]


def _saved_tokens(entry: EntrySummary | None, hits: int) -> int | None:
    return None if entry is None or entry.completion_tokens is None else entry.completion_tokens * hits
