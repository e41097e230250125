"""The admin functions of the store on a Redis Cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio.cluster import RedisCluster

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.fingerprint import Fingerprint
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import PURGE_LOG_KEY, claim_key
from router.shared.cache.hit_counter import HitCounter
from router.store.admin.export_import import export_entries, import_entries
from router.store.admin.grep import Bounds, purge_found, search_answers
from router.store.admin.listing import fetch_detail, list_entries
from router.store.admin.nearest import find_nearest
from router.store.admin.purge import PurgeResult, count_entries, purge
from router.store.admin.scan import execute_commands
from router.store.admin.stats import collect_stats, top_entries
from tests.support.entry_factory import entry_key, make_entry, make_streamed_entry, store_entry
from tests.support.redis_deployments import free_cluster_port
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOTS = 16384
ALL = EntryFilter(all=True)


@pytest_asyncio.fixture(loop_scope="session")
async def cluster() -> AsyncIterator[Any]:
    """A client of a cluster of two servers with half of the slots each."""
    ports = [free_cluster_port(), free_cluster_port()]
    servers = [RedisServer("--port", str(port), "--cluster-enabled", "yes") for port in ports]
    try:
        for server, half in zip(servers, (range(SLOTS // 2), range(SLOTS // 2, SLOTS)), strict=True):
            await server.start()
            await server.command("CLUSTER", "ADDSLOTS", *map(str, half))
        await servers[0].command("CLUSTER", "MEET", "127.0.0.1", str(ports[1]))

        async def is_cluster_ready() -> bool:
            return all(["cluster_state:ok" in await server.command("CLUSTER", "INFO") for server in servers])

        await eventually(is_cluster_ready)
        client: Any = RedisCluster(host="127.0.0.1", port=ports[0], protocol=3)
        yield client
        await client.aclose()
    finally:
        for server in servers:
            server.remove()


async def test_everything_works_across_the_servers_of_a_cluster(cluster: Any) -> None:
    keys = [
        await store_entry(cluster, entry_key(n, rag="b" * 16), make_entry(documents=("handbook",))) for n in range(500)
    ]
    assert ((stats := await collect_stats(cluster)).total.entries, len(stats.redis)) == (500, 2)
    assert [listed.key for listed in (await list_entries(cluster, ALL, 10)).entries] == keys[:10]
    assert (await fetch_detail(cluster, keys[7])) is not None
    near = await find_nearest(
        cluster, Fingerprint(KeyParts("acme", "llama", "0" * 16, "b" * 16, "0" * 32), "", ""), keys[0], 1000
    )
    assert (near.differs, near.looked_at, near.everything) == (["query"], 499, True)

    popularity = HitCounter()
    for at in (keys[1], keys[1], keys[2]):
        popularity.record_hit(at)
    await execute_commands(cluster, popularity.take_commands())
    assert [(hit.key, hit.hits) for hit in await top_entries(cluster, 5)] == [(keys[1], 2), (keys[2], 1)]

    lines: list[bytes] = []
    assert (await export_entries(cluster, ALL, lines.append)).entries == 500
    await cluster.set(claim_key(keys[0]), "flight")
    assert await count_entries(cluster, EntryFilter(document="handbook")) == 500
    assert await purge(cluster, EntryFilter(key=keys[0])) == PurgeResult(entries=1, claims=1)
    assert await purge(cluster, EntryFilter(document="handbook")) == PurgeResult(entries=499, claims=0)
    assert await cluster.xlen(PURGE_LOG_KEY) == 3, "its first record is not a purge"
    assert (await import_entries(cluster, lines)).stored == 500
    assert await purge(cluster, ALL) == PurgeResult(entries=500, claims=0)


async def test_a_search_and_its_purge_reach_every_server(cluster: Any) -> None:
    large = "wide " * 100_000
    for number in range(20):
        await store_entry(cluster, entry_key(number), make_streamed_entry(large if number == 7 else "The sea."))
    found = await search_answers(cluster, EntryFilter(all=True), "sea", Bounds())
    assert (len(found.keys), found.looked_at, found.everything) == (19, 20, True)
    purged = await purge_found(cluster, found)
    assert (purged.entries, purged.recorded) == (19, True)
    (left,) = (await list_entries(cluster, EntryFilter(all=True), 10, None, "saved")).entries
    assert (left.key, (left.preview or "")[:9]) == (entry_key(7), "wide wide")
