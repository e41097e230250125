"""Entries as people see them: in pages, and one entry with all its fields.

A value at an entry's key that is no valid entry is shown as it is, so that it can be found and deleted.
"""

import base64
import heapq
from collections.abc import Mapping
from typing import Final

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import hits_key
from router.core.endpoints.recording.answer_text import answer_text
from router.core.endpoints.recording.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
from router.net.redis.commands import Command
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock, scan_entries
from router.store.codec import decode_documents, decode_entry, invalid_entry_reason

_SUMMARY_FIELDS: Final = (
    "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms", "documents",
)  # fmt: skip


class EntrySummary(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in a listing. None is a value that is absent or cannot be read.

    `created` in seconds since the epoch; `age`, `ttl` (until it is stale) and `gone_in` (until Redis deletes it) in
    seconds; `bytes` of Redis' memory.
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


class EntryPage(msgspec.Struct, frozen=True):
    """Entries in the order of their keys. `cursor` is the start of the next page; None on the last one."""

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
    In `fields`, a value that is not UTF-8 is `base64:` and its encoding.
    """

    entry: EntrySummary
    type: str
    problem: str | None
    text: str | None
    stream: StreamDetail | None
    hits: int | None
    fields: dict[str, str]


async def list_entries(client: RedisClient, scope: EntryFilter, limit: int, after: str | None = None) -> EntryPage:
    """The first `limit` entries that a filter matches, of those after the key `after` if given. Raises
    RedisBackendError.

    Every page scans all keys. So no state is kept between pages, and entries that are added or deleted meanwhile do not
    shift the others.
    """
    smallest: list[str] = []
    async for keys in scan_entries(client, scope):
        candidates = {key for key in keys if after is None or key > after}
        # One more than the page shows that there is a next page. A set: SCAN may return a key twice.
        smallest = heapq.nsmallest(limit + 1, candidates.union(smallest))
    shown = smallest[:limit]
    entries = [entry for entry in await fetch_summaries(client, shown) if entry is not None]
    return EntryPage(entries, shown[-1] if len(smallest) > limit else None)


async def fetch_summaries(client: RedisClient, keys: list[str]) -> list[EntrySummary | None]:
    """The entries at these keys; None for one that does not exist. Raises RedisBackendError."""
    commands: list[Command] = []
    for key in keys:
        commands += [("HMGET", key, *_SUMMARY_FIELDS), ("PTTL", key), memory_command(key)]
    replies = await execute_commands(client, commands)
    now = (await read_redis_clock(client)).now()
    entries = []
    for at, key in zip(range(0, len(replies), 3), keys, strict=True):
        values, pttl, size = replies[at : at + 3]
        fields = dict(zip(_SUMMARY_FIELDS, values, strict=True)) if values is not None else {}
        entries.append(_summarize(key, fields, pttl, size, now) if pttl != -2 else None)  # -2: no such key
    return entries


def _summarize(key: str, fields: Mapping[str, bytes | None], pttl: int, size: int | None, now: float) -> EntrySummary:
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
        prompt_tokens=_parse_int(fields.get("prompt_tokens")),
        completion_tokens=_parse_int(fields.get("completion_tokens")),
        generation_ms=_parse_int(fields.get("generation_ms")),
        bytes=size,
        documents=_document_names(fields.get("documents")),
    )


def memory_command(key: str) -> Command:
    # SAMPLES 0 measures all fields: an entry has so few that a sample would be inaccurate.
    return ("MEMORY USAGE", key, "SAMPLES", 0)


async def fetch_detail(client: RedisClient, key: str) -> EntryDetail | None:
    """The value at an entry's key, whether or not it is an entry; None if there is none. Raises RedisBackendError."""
    hit_count = ("ZSCORE", hits_key(KeyParts.parse(key).tenant), key)
    fields, kind, hits = await execute_commands(client, [("HGETALL", key), ("TYPE", key), hit_count])
    (entry,) = await fetch_summaries(client, [key])
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
        hits=None if hits is None else int(float(hits)),
        fields={decode_text(name) or "": decode_text(value) or "" for name, value in sorted(fields.items())},
    )


def _stream_detail(stream: bytes, body: bytes) -> StreamDetail:
    try:
        events = len(decode_stream(stream, body, include_usage=True, end=b""))
    except STREAM_DECODE_ERRORS:
        events = None
    return StreamDetail(bytes=len(stream), events=events, lossless=is_lossless(stream))


def parse_number(value: bytes | None) -> float | None:
    """The number in a field; None if it is not one, negative, or out of range."""
    try:
        amount = float(value or b"")
    except ValueError:
        return None
    return amount if 0 <= amount < 1e12 else None  # excludes nan too


def _parse_int(value: bytes | None) -> int | None:
    amount = parse_number(value)
    return None if amount is None else int(amount)


def decode_text(value: bytes | None) -> str | None:
    """Bytes as text: UTF-8, else `base64:` and their encoding."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def _document_names(value: bytes | None) -> list[str]:
    try:
        return list(decode_documents(value))
    except ValueError:
        return []
