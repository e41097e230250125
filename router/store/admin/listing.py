"""Entries as people see them: in pages, and one entry with all its fields.

A value at an entry's key that is no valid entry is shown as it is, so that it can be found and deleted.
"""

import heapq
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import sample_key
from router.core.cache.sample import MAX_SAMPLES
from router.core.endpoints.recording.answer_text import answer_text
from router.core.endpoints.recording.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
from router.net.redis.commands import Command
from router.store.admin.answers import fetch_previews
from router.store.admin.entry_order import Order, Rank, decode_cursor, encode_cursor, hit_count_command, rank_entries
from router.store.admin.field_values import decode_text, parse_int, parse_number
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock, scan_entries
from router.store.codec import decode_documents, decode_entry, invalid_entry_reason

_SUMMARY_FIELDS: Final = (
    "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms", "documents",
)  # fmt: skip


class EntrySummary(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in a listing. None is a value that is absent or cannot be read.

    `created` in seconds since the epoch; `age`, `ttl` (until it is stale) and `gone_in` (until Redis deletes it) in
    seconds; `bytes` of Redis' memory.

    - `preview`: the first words of the answer, or what it is if it has no text; see answer_text.answer_preview.
    - `hits`: None if none are counted; see hit_counter. `saved_seconds` of generation, which they saved.
    """

    key: str
    parts: KeyParts
    engine: str | None = None
    task: str | None = None
    created: float | None = None
    age: int | None = None
    ttl: int | None = None
    gone_in: int | None = None
    stale: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    generation_ms: int | None = None
    bytes: int | None = None
    documents: list[str] = []
    preview: str | None = None
    hits: int | None = None
    saved_seconds: float | None = None


class EntryPage(msgspec.Struct, frozen=True):
    """Entries in the order that was asked for. `cursor` is the start of the next page; None on the last one."""

    entries: list[EntrySummary]
    cursor: str | None


class StreamDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The decoded field `stream` of an entry.

    - `bytes`: its length. `events`: bytes of the decoded events, with the usage event and without `[DONE]`; None if
      they cannot be decoded.
    - `lossless`: whether the body contains all that the events do. If not, the body is only for people to read.
    """

    bytes: int
    events: int | None
    lossless: bool


class EntryDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One entry with all its fields in readable form.

    `type` is the Redis type; `problem` is why the router would not use the entry. `text` is that of the response; it
    and `stream` are None if there is a problem or they are absent. `hits` is None if none are counted; see hit_counter.
    In `fields`, a value that is not UTF-8 is `base64:` and its encoding. `samples`: all stored answers to the request,
    this one included; see router.core.cache.sample.
    """

    entry: EntrySummary
    type: str
    problem: str | None
    text: str | None
    stream: StreamDetail | None
    hits: int | None
    fields: dict[str, str]
    samples: list[EntrySummary]


async def list_entries(
    client: RedisClient, scope: EntryFilter, limit: int, after: str | None = None, order: Order = "key"
) -> EntryPage:
    """The first `limit` entries that a filter matches, of those after the cursor `after` if given.

    Every page scans all keys. So no state is kept between pages, and entries that are added or deleted meanwhile do not
    shift the others. One whose amount changes meanwhile, in an order by amounts, may appear twice or not at all.
    Raises RedisBackendError, and ApiError for a cursor that is none.
    """
    start = None if after is None else decode_cursor(order, after)
    first: list[Rank] = []
    async for keys in scan_entries(client, scope):
        ranks = {rank for rank in await rank_entries(client, order, keys) if start is None or rank > start}
        # One more than the page shows that there is a next page. A set: SCAN may return a key twice.
        first = heapq.nsmallest(limit + 1, ranks.union(first))
    shown = first[:limit]
    entries = [entry for entry in await fetch_summaries(client, [key for _, key in shown]) if entry is not None]
    return EntryPage(entries, encode_cursor(order, shown[-1]) if len(first) > limit else None)


async def fetch_summaries(client: RedisClient, keys: list[str]) -> list[EntrySummary | None]:
    """The entries at these keys; None for one that does not exist. Raises RedisBackendError."""
    commands: list[Command] = []
    for key in keys:
        commands += [("HMGET", key, *_SUMMARY_FIELDS), ("PTTL", key), memory_command(key), hit_count_command(key)]
    replies = await execute_commands(client, commands)
    # After the sizes, which decide how much of each answer is read.
    previews = await fetch_previews(client, keys, replies[2::4])
    now = (await read_redis_clock(client)).now()
    entries = []
    for at, key, preview in zip(range(0, len(replies), 4), keys, previews, strict=True):
        values, pttl, size, hits = replies[at : at + 4]
        fields = dict(zip(_SUMMARY_FIELDS, values, strict=True)) if values is not None else {}
        stored = _Stored(pttl, size, preview, parse_int(hits))
        entries.append(_summarize(key, fields, stored, now) if pttl != -2 else None)  # -2: no such key
    return entries


class _Stored(NamedTuple):
    """What Redis says of an entry beside its fields."""

    pttl: int
    size: int | None
    preview: str | None
    hits: int | None


def _summarize(key: str, fields: Mapping[str, bytes | None], stored: _Stored, now: float) -> EntrySummary:
    pttl, size, preview, hits = stored
    milliseconds = parse_int(fields.get("generation_ms"))
    created, ttl = parse_number(fields.get("created")), parse_number(fields.get("ttl"))
    remaining = None if created is None or ttl is None else created + ttl - now
    return EntrySummary(
        key=key,
        parts=KeyParts.parse(key),
        engine=decode_text(fields.get("engine")),
        task=decode_text(fields.get("task")),
        created=created,
        age=None if created is None else max(0, int(now - created)),
        ttl=None if remaining is None else max(0, int(remaining)),
        gone_in=None if pttl < 0 else pttl // 1000,  # -1: no expiry
        stale=remaining is not None and remaining < 0,
        prompt_tokens=parse_int(fields.get("prompt_tokens")),
        completion_tokens=parse_int(fields.get("completion_tokens")),
        generation_ms=milliseconds,
        bytes=size,
        documents=_document_names(fields.get("documents")),
        preview=preview,
        hits=hits,
        saved_seconds=None if milliseconds is None else round((hits or 0) * milliseconds / 1000, 3),
    )


def memory_command(key: str) -> Command:
    # SAMPLES 0 measures all fields: an entry has so few that a sample would be inaccurate.
    return ("MEMORY USAGE", key, "SAMPLES", 0)


async def fetch_detail(client: RedisClient, key: str) -> EntryDetail | None:
    """The value at an entry's key, whether or not it is an entry; None if there is none. Raises RedisBackendError."""
    fields, kind = await execute_commands(client, [("HGETALL", key), ("TYPE", key)])
    samples = [sample_key(key, number) for number in range(MAX_SAMPLES)]
    stored_samples = [entry for entry in await fetch_summaries(client, samples) if entry is not None]
    entry = next((entry for entry in stored_samples if entry.key == key), None)
    if entry is None:
        return None
    fields = fields or {}  # None if the value is not a hash
    stored = decode_entry(fields)
    problem = None
    if kind != b"hash":
        problem = f"not a hash, but of the Redis type {decode_text(kind)}"
    elif stored is None:
        problem = invalid_entry_reason(fields)
    return EntryDetail(
        entry=entry,
        type=decode_text(kind) or "",
        problem=problem,
        text=answer_text(stored.body) if stored is not None else None,
        stream=_stream_detail(stored.stream, stored.body) if stored is not None and stored.stream is not None else None,
        hits=entry.hits,
        fields={decode_text(name) or "": decode_text(value) or "" for name, value in sorted(fields.items())},
        samples=stored_samples,
    )


def _stream_detail(stream: bytes, body: bytes) -> StreamDetail:
    try:
        events = len(decode_stream(stream, body, include_usage=True, end=b""))
    except STREAM_DECODE_ERRORS:
        events = None
    return StreamDetail(bytes=len(stream), events=events, lossless=is_lossless(stream))


def _document_names(value: bytes | None) -> list[str]:
    try:
        return list(decode_documents(value))
    except ValueError:
        return []
