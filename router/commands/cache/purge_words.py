"""The result of a purge in words."""

from typing import TYPE_CHECKING, Final

from router.core.plural import pluralize

if TYPE_CHECKING:
    from router.core.cache.entry_filter import EntryFilter
    from router.store.admin.purge import PurgeResult
    from router.store.admin.purge_record import ReplicaAcks

FULL: Final = (
    "Redis is full, so the purge is not recorded: what was being generated may still be shared, and stored later; "
    "purge again once Redis has room"
)


def describe_purge(result: "PurgeResult") -> str:
    entries, generations = pluralize(result.entries, "entry", "entries"), pluralize(result.claims, "generation")
    purged = f"{entries} and {generations} in progress"
    if result.responses:
        purged = f"{entries}, {pluralize(result.responses, 'kept response')} and {generations} in progress"
    return f"purged {purged}{_describe_replicas(result.replicas)}"


def describe_matches(entries: int, scope: "EntryFilter") -> str:
    """What a purge of this scope would delete."""
    from router.store.admin.purge import covers_responses

    counted = pluralize(entries, "entry", "entries")
    return f"{counted} and the kept responses" if covers_responses(scope) else counted


def _describe_replicas(replicas: "ReplicaAcks | None") -> str:
    if replicas is None:
        return "; unknown how many replicas have received the purge"
    if not replicas.connected:
        return ""
    have = "has" if replicas.connected == 1 else "have"
    return f"; {replicas.acknowledged} of {pluralize(replicas.connected, 'replica')} {have} received the purge"
