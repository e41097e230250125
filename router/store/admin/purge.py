"""Purges responses: those that are stored, and those that are being generated.

The order matters. First comes a record in the purge log, a stream that every router process reads: from then on, no
process stores a response whose generation began before. Then the leases are deleted, so that new requests start a new
generation and do not attach to one that began before. The entries come last, but for the recent requests, which are a
sample of those whose responses are stored, and for the responses that are kept for later turns. A process that was
disconnected reads the log when it reconnects, so its generations in progress are covered too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import (
    PROMPTS_PATTERN,
    RESPONSES_PATTERN,
    claimed_entry_key,
    hits_key,
    is_prompt_key,
    is_response_key,
    prompt_key,
    prompts_key,
    response_sizes_key,
    response_tenant,
    responses_key,
    sampled_entry_key,
    samples_key,
)
from router.net.redis.commands import Command
from router.net.redis.errors import WritesRefusedError
from router.shared.prompts.recent_prompts import decode_ids, prompt_id
from router.store.admin.purge_record import NO_REPLICAS, ReplicaAcks, add_records
from router.store.admin.scan import (
    BATCH_SIZE,
    OnProgress,
    RedisClient,
    execute_commands,
    no_progress,
    scan_entries,
    scan_keys,
)
from router.store.codec import decode_documents


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many `entries` were deleted, and how many `claims` (leases) of in-flight requests.

    - `responses`: of /v1/responses, which are kept for later turns. Only a purge of a tenant or of all deletes them.
    - `replicas`: those that have the purge's record, so that a failover to one of them does not lose it; None is
      unknown.
    - `recorded`: False if Redis is full, and has no room for the record. Then generations in progress are not covered:
      new requests may still share them, and they are stored once Redis has room.
    """

    entries: int
    claims: int
    responses: int = 0
    replicas: ReplicaAcks | None = NO_REPLICAS
    recorded: bool = True


async def purge(client: RedisClient, scope: EntryFilter, progress: OnProgress = no_progress) -> PurgeResult:
    """Delete the entries that a filter matches. Raises RedisBackendError.

    - `progress` gets the number deleted: 0 before anything is changed, and then after each batch.
    - The record exists before anything is deleted. A purge that fails half-way is completed by repeating it.
    - A Redis that is full still deletes. That may make room for the record; else the result says that there is none.
    - Redis is never blocked: it deletes some hundreds of keys at a time, and frees their memory in the background.
    - A purge by document deletes no leases: their keys do not contain the documents.
    - It deletes the recent requests that the filter matches, too.
    """
    # The record, then the leases, then the entries: the module's docstring has the reasons.
    progress(0)
    record = await _try_records(client, [scope])
    claims = 0 if scope.document is not None else await _purge_claims(client, scope)
    entries = 0
    async for keys in scan_entries(client, scope):
        # UNLINK frees the memory in the background.
        entries += sum(await execute_commands(client, [("UNLINK", key) for key in keys]))
        progress(entries)
        await execute_commands(client, _hit_removals(keys))
    await _purge_sample_orders(client, scope)
    await _purge_recent_prompts(client, scope)
    responses = await _purge_responses(client, scope)
    record = record or await _try_records(client, [scope])
    return _result(entries, claims, record, responses)


async def purge_keys(client: RedisClient, keys: Sequence[str], progress: OnProgress = no_progress) -> PurgeResult:
    """Purges the entries at these keys, each as `purge` does. Raises RedisBackendError.

    Each has a record of its own in the purge log, so there must be far fewer keys than the log keeps records: an entry
    that is older than the whole log counts as purged. `replicas`: those that have all of the records.
    """
    results: list[PurgeResult] = []
    progress(0)
    for start in range(0, len(keys), BATCH_SIZE):
        results.append(await _purge_batch(client, keys[start : start + BATCH_SIZE]))
        progress(sum(result.entries for result in results))
    return PurgeResult(
        entries=sum(result.entries for result in results),
        claims=sum(result.claims for result in results),
        replicas=_least([result.replicas for result in results]),
        recorded=all(result.recorded for result in results),
    )


async def _purge_batch(client: RedisClient, keys: Sequence[str]) -> PurgeResult:
    scopes = [EntryFilter(key=key) for key in keys]
    # In the order of `purge`, and for the same reasons.
    record = await _try_records(client, scopes)
    claims = sum(await execute_commands(client, [("DEL", scope.claim_pattern) for scope in scopes]))
    entries = sum(await execute_commands(client, [("UNLINK", key) for key in keys]))
    await execute_commands(client, _hit_removals(keys))
    await _purge_prompts(client, scopes, [_prompt_key_of(key) for key in keys])
    return _result(entries, claims, record or await _try_records(client, scopes))


def _least(acks: Sequence[ReplicaAcks | None]) -> ReplicaAcks | None:
    known = [each for each in acks if each is not None]
    if len(known) < len(acks):
        return None
    return min(known, key=lambda each: each.acknowledged - each.connected, default=NO_REPLICAS)


class _Record(NamedTuple):
    replicas: ReplicaAcks | None


def _result(entries: int, claims: int, record: _Record | None, responses: int = 0) -> PurgeResult:
    replicas = record.replicas if record is not None else NO_REPLICAS
    return PurgeResult(
        entries=entries, claims=claims, responses=responses, replicas=replicas, recorded=record is not None
    )


async def _try_records(client: RedisClient, scopes: Sequence[EntryFilter]) -> _Record | None:
    """None if Redis is full. Raises RedisBackendError, also for other refusals of writes: it then deletes nothing."""
    try:
        return _Record(await add_records(client, scopes))
    except WritesRefusedError as error:
        if error.refusal != "full":
            raise
        return None


async def count_entries(client: RedisClient, scope: EntryFilter, progress: OnProgress = no_progress) -> int:
    """How many entries a purge would delete now. Raises RedisBackendError."""
    count = 0
    async for keys in scan_entries(client, scope):
        count += len(keys)
        progress(count)
    return count


async def _purge_claims(client: RedisClient, scope: EntryFilter) -> int:
    if scope.key is not None:
        return sum(await execute_commands(client, [("DEL", scope.claim_pattern)]))
    deleted = 0
    async for batch in scan_keys(client, scope.claim_pattern):
        matching = [claim for claim in batch if scope.matches(claimed_entry_key(claim))]
        deleted += sum(await execute_commands(client, [("DEL", claim) for claim in matching]))
    return deleted


async def _purge_sample_orders(client: RedisClient, scope: EntryFilter) -> None:
    """So sessions that had the samples get the new ones. Of a document or one sample, the others are still there."""
    if scope.key is not None or scope.document is not None:
        return
    async for batch in scan_keys(client, samples_key(scope.key_pattern)):
        matching = [key for key in batch if scope.matches(sampled_entry_key(key))]
        await execute_commands(client, [("UNLINK", key) for key in matching])


def covers_responses(scope: EntryFilter) -> bool:
    """Whether a purge deletes kept responses: they have no model, system prompt or documents of their own."""
    return scope.all or (scope.tenant is not None and scope == EntryFilter(tenant=scope.tenant))


async def _purge_responses(client: RedisClient, scope: EntryFilter) -> int:
    """How many it deleted. SCAN also finds those that the set of a tenant does not name any more."""
    if not covers_responses(scope):
        return 0
    pattern = RESPONSES_PATTERN if scope.tenant is None else responses_key(scope.tenant) + "*"
    deleted = 0
    tenants: set[str] = set()
    async for batch in scan_keys(client, pattern):
        keys = [key for key in batch if scope.all or response_tenant(key) == scope.tenant]
        tenants |= {response_tenant(key) for key in keys if not is_response_key(key)}
        deleted += sum(await execute_commands(client, [("UNLINK", key) for key in keys if is_response_key(key)]))
    for key_of in (responses_key, response_sizes_key):  # in this order: no size stays without its id
        await execute_commands(client, [("UNLINK", key_of(tenant)) for tenant in sorted(tenants)])
    return deleted


async def _purge_recent_prompts(client: RedisClient, scope: EntryFilter) -> None:
    if scope.key is not None:
        await _purge_prompts(client, [scope], [_prompt_key_of(scope.key)])
        return
    model_pattern = prompts_key(scope.model) + "*" if scope.model is not None else PROMPTS_PATTERN
    async for keys in scan_keys(client, model_pattern):
        prompts = [key for key in keys if is_prompt_key(key)]
        await _purge_prompts(client, [scope] * len(prompts), prompts)
        await _purge_former_prompts(client, [key for key in keys if not is_prompt_key(key)])


async def _purge_prompts(client: RedisClient, scopes: Sequence[EntryFilter], keys: Sequence[str]) -> None:
    """`scopes`: for each key."""
    replies = await execute_commands(client, [("HMGET", key, "key", "documents") for key in keys])
    asked = zip(scopes, keys, replies, strict=True)
    await execute_commands(client, [("UNLINK", key) for scope, key, reply in asked if _covers(scope, reply)])


def _prompt_key_of(entry_key: str) -> str:
    return prompt_key(KeyParts.parse(entry_key).model, prompt_id(entry_key))


def _covers(scope: EntryFilter, reply: Any) -> bool:
    """Also true for a request whose fields cannot be read."""
    try:
        key, documents = reply
        return scope.matches(key.decode(), decode_documents(documents))
    except (TypeError, ValueError, AttributeError):
        return True


async def _purge_former_prompts(client: RedisClient, lists: list[str]) -> None:
    """Deletes the lists with requests of a former version, which do not say what they are about."""
    replies = await execute_commands(client, [("LRANGE", key, 0, -1) for key in lists])
    former = [key for key, reply in zip(lists, replies, strict=True) if reply and len(decode_ids(reply)) < len(reply)]
    await execute_commands(client, [("UNLINK", key) for key in former])


def _hit_removals(purged_keys: Sequence[str]) -> list[Command]:
    # A tenant's hit counts are one sorted set, so one command each.
    by_tenant: dict[str, list[str]] = {}
    for key in purged_keys:
        by_tenant.setdefault(KeyParts.parse(key).tenant, []).append(key)
    return [("ZREM", hits_key(tenant), *keys_of) for tenant, keys_of in by_tenant.items()]
