"""Finds the stored entry most similar to a request, among those of its tenant."""

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.fingerprint import Fingerprint, MissReason, entry_fingerprint
from router.core.cache.redis_keys import EMPTY_HASH
from router.store.admin.field_values import parse_number
from router.store.admin.scan import RedisClient, execute_commands, scan_entries


class NearestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`differs`: the parts in which the entry at `key` differs. `key` is None if the tenant has no other entry.

    `looked_at`: number of entries compared; `everything`: whether these were all of the tenant's entries.
    """

    key: str | None
    differs: list[MissReason]
    looked_at: int
    everything: bool


async def find_nearest(client: RedisClient, wanted: Fingerprint, key: str, max_compared: int) -> NearestEntry:
    """The entry with the fewest differing parts, the newest of several. Compares about `max_compared` entries.

    The entry at `key` itself is skipped. Raises RedisBackendError.
    """
    best: tuple[tuple[int, int, float], str, list[MissReason]] | None = None  # rank, key, differing parts
    looked_at = 0
    async for keys in scan_entries(client, EntryFilter(tenant=wanted.key.tenant)):
        if looked_at >= max_compared:
            return _to_result(best, looked_at, everything=False)
        others = [other for other in keys if other != key]
        replies = await execute_commands(
            client, [("HMGET", other, "question", "params", "created") for other in others]
        )
        for other, values in zip(others, replies, strict=True):
            question, params, created = values or (b"", b"", None)
            stored = entry_fingerprint(other, decode_ascii(question), decode_ascii(params))
            if stored is None:
                continue
            looked_at += 1
            differs = wanted.differing_parts(stored)
            # Among equal numbers of differing parts, the entry with the same question is the one the user means.
            # Then the newest.
            rank = (len(differs), _dissimilarity(wanted, stored), -(parse_number(created) or 0.0))
            if best is None or rank < best[0]:
                best = (rank, other, differs)
    return _to_result(best, looked_at, everything=True)


def _to_result(
    best: tuple[tuple[int, int, float], str, list[MissReason]] | None, looked_at: int, *, everything: bool
) -> NearestEntry:
    _, key, differs = best or (None, None, [])
    return NearestEntry(key=key, differs=differs, looked_at=looked_at, everything=everything)


def _dissimilarity(wanted: Fingerprint, stored: Fingerprint) -> int:
    """Minus the number of shared parts that distinguish requests; an absent system prompt or context does not."""
    shared = (
        wanted.question == stored.question,
        wanted.key.system == stored.key.system != EMPTY_HASH,
        wanted.key.rag == stored.key.rag != EMPTY_HASH,
    )
    return -sum(shared)


def decode_ascii(value: bytes | None) -> str:
    return (value or b"").decode("ascii", "replace")
