"""Forgetting answers: those that are stored, and those that are still being given.

The order matters. What is to be forgotten is first written down in a stream that every router process reads: from then
on none of them stores an answer that began before. Then the claims go, so that whoever asks now begins anew and does
not attach to an answer that began before; and at last the entries. A process that was away reads the stream when it is
back; what it had in hand is covered, too.
"""

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import claimed_entry_key, hits_key
from router.net.redis.commands import Command
from router.store.admin.purge_record import NO_REPLICAS, ReplicaAcks, add_record
from router.store.admin.scan import OnProgress, RedisClient, execute_commands, no_progress, scan_entries, scan_keys


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many `entries` were there and are gone, and how many `claims` of generations in flight.

    `replicas`: which have the record of the purge, so that a failover to one of them does not lose it; None is unknown.
    """

    entries: int
    claims: int
    replicas: ReplicaAcks | None = NO_REPLICAS


async def purge(client: RedisClient, scope: EntryFilter, progress: OnProgress = no_progress) -> PurgeResult:
    """Forgets what a scope means; `progress` is told of the entries that are gone. Raises LinkError.

    - A record of it is there before anything is deleted; one that fails half-way is taken up by doing it again.
    - Redis is never held up: it deletes some hundreds of keys at a time, and frees their memory beside its work.
    - Of a scope that names a document, no claim is deleted: their names do not tell.
    """
    replicas = await add_record(client, scope)
    claims = 0 if scope.document is not None else await _purge_claims(client, scope)
    entries = 0
    async for meant in scan_entries(client, scope):
        entries += sum(await execute_commands(client, [("UNLINK", key) for key in meant]))
        await execute_commands(client, _hit_removals(meant))
        progress(entries)
    return PurgeResult(entries=entries, claims=claims, replicas=replicas)


async def count_entries(client: RedisClient, scope: EntryFilter, progress: OnProgress = no_progress) -> int:
    """How many entries a purge would find now. Raises LinkError."""
    found = 0
    async for meant in scan_entries(client, scope):
        found += len(meant)
        progress(found)
    return found


async def _purge_claims(client: RedisClient, scope: EntryFilter) -> int:
    if scope.key is not None:
        return sum(await execute_commands(client, [("DEL", scope.claim_pattern)]))
    gone = 0
    async for batch in scan_keys(client, scope.claim_pattern):
        meant = [claim for claim in batch if scope.matches(claimed_entry_key(claim))]
        gone += sum(await execute_commands(client, [("DEL", claim) for claim in meant]))
    return gone


def _hit_removals(purged_keys: list[str]) -> list[Command]:
    """Takes entries out of the counts of hits; a command for each tenant."""
    by_tenant: dict[str, list[str]] = {}
    for key in purged_keys:
        by_tenant.setdefault(key.split(":")[2], []).append(key)
    return [("ZREM", hits_key(tenant), *keys_of) for tenant, keys_of in by_tenant.items()]
