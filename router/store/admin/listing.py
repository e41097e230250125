"""Entries as people see them: page by page, and one with all that it holds.

What stands at an entry's key and is none is shown as it stands, so that it can be found and deleted.
"""

import base64
import heapq
from collections.abc import Mapping
from typing import Final

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.endpoints.answer_text import answer_text
from router.core.endpoints.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
from router.net.redis.commands import Command
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock, scan_entries
from router.store.codec import decode_documents, decode_entry, invalid_entry_reason

_SUMMARY_FIELDS: Final = (
    "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms", "documents",
)  # fmt: skip


class KeyParts(msgspec.Struct, frozen=True):
    """The parts of an entry's key."""

    tenant: str
    model: str
    system: str
    rag: str
    query: str

    @classmethod
    def parse(cls, key: str) -> "KeyParts":
        return cls(*key.split(":")[2:7])


class EntrySummary(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as a listing shows it; None is: it does not say so, or not in a way that can be read.

    `created` in seconds since the epoch, `age`, `ttl` (until it is stale) and `gone_in` (until Redis drops it) in
    seconds, `bytes` of Redis' memory.
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
    """Some entries in the order of their keys. `cursor` is where the next page begins; None where this is the last."""

    entries: list[EntrySummary]
    cursor: str | None


class StreamDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry's field `stream` is.

    - `bytes`: its length. `events`: bytes of the events that it gives, with the usage event and without `[DONE]`; None
      where it gives none.
    - `lossless`: whether the body says all that the events said. If not, the body is only for people to read.
    """

    bytes: int
    events: int | None
    lossless: bool


class EntryDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One entry with all that it holds, in a form that can be read.

    `type` is Redis' own; `problem` says why it is no entry that the router would use. `text` is that of the answer; it
    and `stream` are None where there is a problem, or none of it. In `fields`, what is not UTF-8 is `base64:` and that.
    """

    entry: EntrySummary
    type: str
    problem: str | None
    text: str | None
    stream: StreamDetail | None
    fields: dict[str, str]


async def list_entries(client: RedisClient, scope: EntryFilter, limit: int, after: str | None = None) -> EntryPage:
    """The first `limit` entries that a scope means, or those after the key `after`. Raises LinkError.

    Every page looks at all keys: so it needs no memory of the page before, and entries that come and go meanwhile move
    none of the others.
    """
    smallest: list[str] = []
    async for found in scan_entries(client, scope):
        later = {key for key in found if after is None or key > after}
        smallest = heapq.nsmallest(limit + 1, later.union(smallest))
    shown = smallest[:limit]
    entries = [entry for entry in await fetch_summaries(client, shown) if entry is not None]
    return EntryPage(entries, shown[-1] if len(smallest) > limit else None)


async def fetch_summaries(client: RedisClient, keys: list[str]) -> list[EntrySummary | None]:
    """Entries as a listing shows them; None for one that is gone. Raises LinkError."""
    commands: list[Command] = []
    for key in keys:
        commands += [("HMGET", key, *_SUMMARY_FIELDS), ("PTTL", key), memory_command(key)]
    replies = await execute_commands(client, commands)
    now = (await read_redis_clock(client)).now()
    entries = []
    for at, key in zip(range(0, len(replies), 3), keys, strict=True):
        values, pttl, size = replies[at : at + 3]
        fields = dict(zip(_SUMMARY_FIELDS, values, strict=True)) if values is not None else {}
        entries.append(_summarize(key, fields, pttl, size, now) if pttl != -2 else None)
    return entries


def _summarize(key: str, fields: Mapping[str, bytes | None], pttl: int, size: int | None, now: float) -> EntrySummary:
    created, ttl = parse_number(fields.get("created")), parse_number(fields.get("ttl"))
    left = None if created is None or ttl is None else created + ttl - now
    return EntrySummary(
        key=key,
        parts=KeyParts.parse(key),
        engine=decode_text(fields.get("engine")),
        task=decode_text(fields.get("task")),
        created=created,
        age=None if created is None else max(0, int(now - created)),
        ttl=None if left is None else max(0, int(left)),
        gone_in=None if pttl < 0 else pttl // 1000,
        stale=left is not None and left < 0,
        prompt_tokens=_parse_int(fields.get("prompt_tokens")),
        completion_tokens=_parse_int(fields.get("completion_tokens")),
        generation_ms=_parse_int(fields.get("generation_ms")),
        bytes=size,
        documents=_document_names(fields.get("documents")),
    )


def memory_command(key: str) -> Command:
    """Asks for the bytes of memory of a key, by all of its fields: of so few, a sample would say little."""
    return ("MEMORY USAGE", key, "SAMPLES", 0)


async def fetch_detail(client: RedisClient, key: str) -> EntryDetail | None:
    """What stands at the key of an entry, whether or not it is one; None where nothing does. Raises LinkError."""
    fields, kind = await execute_commands(client, [("HGETALL", key), ("TYPE", key)])
    (entry,) = await fetch_summaries(client, [key])
    if entry is None:
        return None
    fields = fields or {}
    stored = decode_entry(fields)
    problem = None
    if kind != b"hash":
        problem = f"not a hash, but what Redis calls a {decode_text(kind)}"
    elif stored is None:
        problem = invalid_entry_reason(fields)
    return EntryDetail(
        entry=entry,
        type=decode_text(kind) or "",
        problem=problem,
        text=answer_text(stored.body) if stored is not None else None,
        stream=_stream_detail(stored.stream, stored.body) if stored is not None and stored.stream is not None else None,
        fields={decode_text(name) or "": decode_text(value) or "" for name, value in sorted(fields.items())},
    )


def _stream_detail(stream: bytes, body: bytes) -> StreamDetail:
    try:
        events = len(decode_stream(stream, body, include_usage=True, end=b""))
    except STREAM_DECODE_ERRORS:
        events = None
    return StreamDetail(bytes=len(stream), events=events, lossless=is_lossless(stream))


def parse_number(value: bytes | None) -> float | None:
    """An amount as a field holds it; None for what is none that a clock could say."""
    try:
        amount = float(value or b"")
    except ValueError:
        return None
    return amount if 0 <= amount < 1e12 else None  # nan is neither


def _parse_int(value: bytes | None) -> int | None:
    amount = parse_number(value)
    return None if amount is None else int(amount)


def decode_text(value: bytes | None) -> str | None:
    """A field's bytes as text, whatever they are."""
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
