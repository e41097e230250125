"""The cache as a whole: how much there is of what, and which entries are hit the most.

It is Redis that is asked, so it shows the same to whoever asks, router or command line. Numbers of entries are as exact
as SCAN is while others write.
"""

from typing import Any, Final

import msgspec

from router.core.cache.entry_filter import Scope
from router.core.cache.redis_keys import ALL_CLAIMS, ALL_FLIGHTS, ALL_HITS, hits_of
from router.store.admin.listing import KeyParts, Listed, listed, memory_of, number, text
from router.store.admin.scan import Client, Progress, ask, faults_told, find, keys, redis_clock, unheard

MEASURED: Final = 100
"""Entries of each tenant and model whose memory is measured; for the others it is reckoned from those."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """`stale` of the `entries` have outlived their time; `bytes` of Redis' memory, and how many were `measured`.

    - `tokens`: generated tokens of all entries, each of which says how many it has.
    - `bytes_per_token`: Redis' memory per generated token, over the measured entries that have any; None without one.
      Embeddings, and answers of engines that tell no usage, have none: `bytes` counts them and this does not. The total
      weighs each tenant and model by its tokens, not by how many of its entries were measured.
    """

    entries: int
    stale: int
    tokens: int
    bytes: int
    measured: int
    bytes_per_token: float | None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """`tenants`: by tenant and model. `oldest`, `newest` in seconds since the epoch; None where there is no entry.

    `redis`: of each server its memory in use and its bound in bytes (None for none), what it does when that is full,
    and how many keys it has evicted since it started.
    """

    total: Amount
    tenants: dict[str, dict[str, Amount]]
    oldest: float | None
    newest: float | None
    claims: int
    flights: int
    redis: list[dict[str, Any]]


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was hit `hits` times. `saved` tokens were not generated; None where it is gone."""

    key: str
    hits: int
    saved: int | None
    entry: Listed | None


class _Group:
    """What is counted of a tenant and model; `answer_bytes` and `answer_tokens` are of measured entries with tokens."""

    __slots__ = ("answer_bytes", "answer_tokens", "bytes", "entries", "measured", "stale", "tokens")

    def __init__(self) -> None:
        self.entries = self.stale = self.tokens = 0
        self.measured = self.bytes = self.answer_bytes = self.answer_tokens = 0

    def amount(self) -> Amount:
        return Amount(
            entries=self.entries,
            stale=self.stale,
            tokens=self.tokens,
            bytes=self.bytes * self.entries // (self.measured or 1),
            measured=self.measured,
            bytes_per_token=_ratio(self.answer_bytes, self.answer_tokens),
        )


def _ratio(size: float, tokens: int) -> float | None:
    return round(size / tokens, 2) if tokens else None


def _total(amounts: list[Amount]) -> Amount:
    weighed = [(amount.bytes_per_token, amount.tokens) for amount in amounts if amount.bytes_per_token is not None]
    return Amount(
        entries=sum(amount.entries for amount in amounts),
        stale=sum(amount.stale for amount in amounts),
        tokens=sum(amount.tokens for amount in amounts),
        bytes=sum(amount.bytes for amount in amounts),
        measured=sum(amount.measured for amount in amounts),
        bytes_per_token=_ratio(sum(each * tokens for each, tokens in weighed), sum(tokens for _, tokens in weighed)),
    )


async def stats(client: Client, progress: Progress = unheard) -> Stats:
    """Counts everything; `progress` is told of the entries. Raises LinkError."""
    groups: dict[str, dict[str, _Group]] = {}
    counted = 0
    oldest = newest = None
    clock = await redis_clock(client)
    async for found in find(client, Scope(all=True)):
        now = clock.now()
        told = await ask(client, [("HMGET", key, "created", "ttl", "completion_tokens") for key in found])
        entries = []
        for key, values in zip(found, told, strict=True):
            parts = KeyParts.of(key)
            group = groups.setdefault(parts.tenant, {}).setdefault(parts.model, _Group())
            created, ttl, completion_tokens = map(number, values or (None, None, None))
            tokens = int(completion_tokens or 0)
            group.entries += 1
            group.stale += created is not None and ttl is not None and now > created + ttl
            group.tokens += tokens
            if created is not None:
                oldest = min(created, oldest or created)
                newest = max(created, newest or created)
            entries.append((key, group, tokens))
        await _measure(client, entries)
        counted += len(found)
        progress(counted)
    tenants = {
        tenant: {model: group.amount() for model, group in sorted(models.items())}
        for tenant, models in sorted(groups.items())
    }
    return Stats(
        total=_total([amount for models in tenants.values() for amount in models.values()]),
        tenants=tenants,
        oldest=oldest,
        newest=newest,
        claims=await _count(client, ALL_CLAIMS),
        flights=await _count(client, ALL_FLIGHTS),
        redis=await _servers(client),
    )


async def _measure(client: Client, entries: list[tuple[str, _Group, int]]) -> None:
    """Adds the memory of entries, given with their groups and tokens, as long as their groups have few measured."""
    chosen = []
    for key, group, tokens in entries:
        if group.measured < MEASURED:
            group.measured += 1
            chosen.append((key, group, tokens))
    sizes = await ask(client, [memory_of(key) for key, _, _ in chosen])
    for (_, group, tokens), size in zip(chosen, sizes, strict=True):
        group.bytes += size or 0
        if tokens and size:
            group.answer_bytes += size
            group.answer_tokens += tokens


async def _count(client: Client, pattern: str) -> int:
    return sum([len(batch) async for batch in keys(client, pattern)])


async def _servers(client: Client) -> list[dict[str, Any]]:
    with faults_told():
        if hasattr(client, "get_primaries"):  # a cluster
            told = [await client.info(target_nodes=node) for node in client.get_primaries()]
        else:
            told = [await client.info()]
    return [
        {
            "version": info.get("redis_version"),
            "memory": info.get("used_memory"),
            "max_memory": info.get("maxmemory") or None,
            "policy": info.get("maxmemory_policy"),
            "evicted": info.get("evicted_keys"),
        }
        for info in told
    ]


async def top(client: Client, limit: int, tenant: str | None = None) -> list[Hit]:
    """The entries with the most hits, of one tenant or of all. Raises LinkError."""
    if tenant is not None:
        counted = [hits_of(tenant)]
    else:
        counted = sorted({name async for batch in keys(client, ALL_HITS) for name in batch})
    ranked: dict[str, int] = {}
    for name in counted:
        with faults_told():
            best = await client.zrevrange(name, 0, limit - 1, withscores=True)
        ranked |= {text(key) or "": int(hits) for key, hits in best}
    keys_of = [key for key in ranked if Scope(all=True).matches(key)]
    chosen = sorted(keys_of, key=lambda key: (-ranked[key], key))[:limit]
    return [
        Hit(key=key, hits=ranked[key], saved=_saved(entry, ranked[key]), entry=entry)
        for key, entry in zip(chosen, await listed(client, chosen), strict=True)
    ]


def _saved(entry: Listed | None, hits: int) -> int | None:
    return None if entry is None or entry.completion_tokens is None else entry.completion_tokens * hits
