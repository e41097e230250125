"""The cache as a whole: how much there is of what, and which entries are hit the most.

It is Redis that is asked, so it shows the same to whoever asks, router or command line. Numbers of entries are as exact
as SCAN is while others write.
"""

from typing import Any, Final

import msgspec

from router.core.names import ALL_CLAIMS, ALL_FLIGHTS, ALL_HITS, hits_of
from router.core.scope import Scope
from router.store.finding import Client, Progress, ask, faults_told, find, keys, redis_clock, unheard
from router.store.listing import KeyParts, Listed, listed, memory_of, number, text

MEASURED: Final = 100
"""Entries of each tenant and model whose memory is measured; for the others it is reckoned from those."""


class Amount(msgspec.Struct, kw_only=True):
    """`stale` of the `entries` have outlived their time; `bytes` of Redis' memory, and how many were `measured`."""

    entries: int = 0
    stale: int = 0
    bytes: int = 0
    measured: int = 0


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


async def stats(client: Client, progress: Progress = unheard) -> Stats:
    """Counts everything; `progress` is told of the entries. Raises LinkError."""
    tenants: dict[str, dict[str, Amount]] = {}
    total = Amount()
    oldest = newest = None
    clock = await redis_clock(client)
    async for found in find(client, Scope(all=True)):
        now = clock.now()
        times = await ask(client, [("HMGET", key, "created", "ttl") for key in found])
        groups = []
        for key, values in zip(found, times, strict=True):
            parts = KeyParts.of(key)
            group = tenants.setdefault(parts.tenant, {}).setdefault(parts.model, Amount())
            created, ttl = map(number, values or (None, None))
            group.entries += 1
            group.stale += created is not None and ttl is not None and now > created + ttl
            if created is not None:
                oldest = min(created, oldest or created)
                newest = max(created, newest or created)
            groups.append((key, group))
        await _measure(client, groups)
        total.entries += len(found)
        progress(total.entries)
    for group in (group for models in tenants.values() for group in models.values()):
        total.stale += group.stale
        total.measured += group.measured
        group.bytes = group.bytes * group.entries // (group.measured or 1)
        total.bytes += group.bytes
    return Stats(
        total=total,
        tenants={tenant: dict(sorted(models.items())) for tenant, models in sorted(tenants.items())},
        oldest=oldest,
        newest=newest,
        claims=await _count(client, ALL_CLAIMS),
        flights=await _count(client, ALL_FLIGHTS),
        redis=await _servers(client),
    )


async def _measure(client: Client, groups: list[tuple[str, Amount]]) -> None:
    chosen = []
    for key, group in groups:
        if group.measured < MEASURED:
            group.measured += 1
            chosen.append((key, group))
    sizes = await ask(client, [memory_of(key) for key, _ in chosen])
    for (_, group), size in zip(chosen, sizes, strict=True):
        group.bytes += size or 0


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
