"""Forgetting answers: those that are stored, and those that are still being given.

The order matters. What is to be forgotten is first written down in a stream that every router process reads: from then
on none of them stores an answer that began before. Then the claims go, so that whoever asks now begins anew and does
not attach to an answer that began before; and at last the entries. A process that was away reads the stream when it is
back; what it had in hand is covered, too.
"""

import msgspec

from router.core.cache.entry_filter import Scope
from router.core.cache.redis_keys import claimed_by, hits_of
from router.net.redis.commands import Command
from router.store.admin.purge_record import NO_REPLICAS, Replicas, add_record
from router.store.admin.scan import Client, Progress, ask, find, keys, unheard


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many `entries` were there and are gone, and how many `claims` of generations in flight.

    `replicas`: which have the record of the purge, so that a failover to one of them does not lose it; None is unknown.
    """

    entries: int
    claims: int
    replicas: Replicas | None = NO_REPLICAS


async def purge(client: Client, scope: Scope, progress: Progress = unheard) -> Purged:
    """Forgets what a scope means; `progress` is told of the entries that are gone. Raises LinkError.

    - A record of it is there before anything is deleted; one that fails half-way is taken up by doing it again.
    - Redis is never held up: it deletes some hundreds of keys at a time, and frees their memory beside its work.
    - Of a scope that names a document, no claim is deleted: their names do not tell.
    """
    replicas = await add_record(client, scope)
    claims = 0 if scope.document is not None else await _purge_claims(client, scope)
    entries = 0
    async for meant in find(client, scope):
        entries += sum(await ask(client, [("UNLINK", key) for key in meant]))
        await ask(client, _without_hits(meant))
        progress(entries)
    return Purged(entries=entries, claims=claims, replicas=replicas)


async def count(client: Client, scope: Scope, progress: Progress = unheard) -> int:
    """How many entries a purge would find now. Raises LinkError."""
    found = 0
    async for meant in find(client, scope):
        found += len(meant)
        progress(found)
    return found


async def _purge_claims(client: Client, scope: Scope) -> int:
    if scope.key is not None:
        return sum(await ask(client, [("DEL", scope.claims)]))
    gone = 0
    async for batch in keys(client, scope.claims):
        meant = [claim for claim in batch if scope.matches(claimed_by(claim))]
        gone += sum(await ask(client, [("DEL", claim) for claim in meant]))
    return gone


def _without_hits(gone: list[str]) -> list[Command]:
    """Takes entries out of the counts of hits; a command for each tenant."""
    by_tenant: dict[str, list[str]] = {}
    for key in gone:
        by_tenant.setdefault(key.split(":")[2], []).append(key)
    return [("ZREM", hits_of(tenant), *keys_of) for tenant, keys_of in by_tenant.items()]
