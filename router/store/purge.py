"""Forgetting answers: those that are stored, and those that are still being given.

The order matters. What is to be forgotten is first written down in a stream that every router process reads: from then
on none of them stores an answer that began before. Then the claims go, so that whoever asks now begins anew and does
not attach to an answer that began before; and at last the entries. A process that was away reads the stream when it is
back; what it had in hand is covered, too.
"""

from typing import Final

import msgspec

from router.core.names import PURGES, claimed_by, hits_of
from router.core.scope import Scope
from router.shared.link import Command
from router.store.finding import Client, Progress, ask, faults_told, find, keys, unheard

RECORDS: Final = 10_000
"""Purges that are remembered, or a few more."""

SCOPE_FIELD: Final = "scope"
"""The field of a record that holds the scope as JSON."""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """How many `entries` were there and are gone, and how many `claims` of generations in flight."""

    entries: int
    claims: int


async def purge(client: Client, scope: Scope, progress: Progress = unheard) -> Purged:
    """Forgets what a scope means; `progress` is told of the entries that are gone. Raises LinkError.

    - A record of it is there before anything is deleted; one that fails half-way is taken up by doing it again.
    - Redis is never held up: it deletes some hundreds of keys at a time, and frees their memory beside its work.
    - Of a scope that names a document, no claim is deleted: their names do not tell.
    """
    # Not by way of `ask`, for which a key of another type is no fault: without a record nothing may be deleted.
    with faults_told():
        await client.execute_command("XADD", PURGES, "MAXLEN", "~", RECORDS, "*", SCOPE_FIELD, scope.record())
    claims = 0 if scope.document is not None else await _purge_claims(client, scope)
    entries = 0
    async for meant in find(client, scope):
        entries += sum(await ask(client, [("UNLINK", key) for key in meant]))
        await ask(client, _without_hits(meant))
        progress(entries)
    return Purged(entries=entries, claims=claims)


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
