"""Exports entries to lines of JSON, and imports them into another Redis.

    {"key": "rh:1:…", "expires": 1795432012.5, "fields": {"digest": "…", "body": "…", "stream": "=…", "format": "2", …}}

`expires` is an instant in seconds since the epoch by Redis' clock, so the age of a file does not prolong the life of
its entries. Fields are text; one that is not UTF-8, which no router writes, is `{"base64": "…"}`. A line of another
format version is rejected: only the routers that wrote it can read it.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from router.core.cache.entry_filter import EntryFilter, EntryKey
from router.net.redis.commands import Command
from router.store.admin.purge_record import last_record_id
from router.store.admin.scan import (
    OnProgress,
    RedisClient,
    execute_commands,
    no_progress,
    read_redis_clock,
    scan_entries,
)
from router.store.codec import decode_entry, invalid_entry_reason

MAX_LINE: Final = 64 << 20
"""Bytes of a line. An entry within the default `cache.max_entry` needs some MiB at most."""

_BATCH_ENTRIES: Final = 50  # per pipeline; each entry may be large
_BATCH_BYTES: Final = 8 << 20

# A script is atomic, so an entry that another process stores meanwhile is not overwritten. It has one key, as a cluster
# requires.
_PUT_UNLESS_NEWER_SCRIPT: Final = """
if redis.call('TYPE', KEYS[1]).ok == 'hash' then
  local created = tonumber(redis.call('HGET', KEYS[1], 'created') or '')
  if created and created >= tonumber(ARGV[1]) then return 0 end
end
redis.call('DEL', KEYS[1])
for index = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[index], ARGV[index + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


class _Base64Value(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


class _ExportLine(msgspec.Struct, forbid_unknown_fields=True):
    key: EntryKey
    expires: Annotated[float, Meta(ge=0, le=1e12)]
    fields: dict[str, str | _Base64Value]


_encode_json = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_ExportLine).decode


class ImportLineError(Exception):
    """A line is not a valid entry; the message has its number and the reason."""


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many `entries` were written, and how many values at entry keys were `left_out` as invalid entries."""

    entries: int
    left_out: int


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many entries were `stored`, had `expired`, or were `older` than (or as old as) the entry at their key."""

    stored: int
    expired: int
    older: int


async def export_entries(
    client: RedisClient, scope: EntryFilter, write: Callable[[bytes], object], progress: OnProgress = no_progress
) -> ExportResult:
    """Write a line for each matching entry; `progress` gets their number. Raises RedisBackendError.

    SCAN may return an entry twice; importing it twice does no harm.
    """
    entries = left_out = 0
    clock = await read_redis_clock(client)
    async for keys in scan_entries(client, scope):
        for start in range(0, len(keys), _BATCH_ENTRIES):
            batch = keys[start : start + _BATCH_ENTRIES]
            commands: list[Command] = []
            for key in batch:
                commands += [("HGETALL", key), ("PTTL", key)]
            replies = await execute_commands(client, commands)
            now = clock.now()
            for key, fields, pttl in zip(batch, replies[::2], replies[1::2], strict=True):
                entry = decode_entry(fields or {})
                if entry is not None and pttl > 0:
                    write(_encode_line(key, now + pttl / 1000, fields))
                    entries += 1
                elif pttl != -2:  # -2: deleted since SCAN returned it
                    left_out += 1
            progress(entries)
    return ExportResult(entries=entries, left_out=left_out)


def _encode_line(key: str, expires: float, fields: Mapping[bytes, bytes]) -> bytes:
    written = {name.decode("ascii", "replace"): _encode_value(value) for name, value in fields.items()}
    return _encode_json({"key": key, "expires": round(expires, 3), "fields": written}) + b"\n"


def _encode_value(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


async def import_entries(
    client: RedisClient, lines: Iterable[bytes], progress: OnProgress = no_progress, on_stored: OnProgress = no_progress
) -> ImportResult:
    """Store the entries of lines. Raises RedisBackendError and ImportLineError.

    - `progress` gets the number read; `on_stored` that of those stored: 0 before the first, and then after each batch.
    - A stored entry that is as new or newer is kept.
    - An entry keeps the expiry that it had where it was exported.
    - All lines before an invalid line are stored, and none after it; repeating the import does no harm.
    """
    # An entry's own position refers to the log of the Redis that it was exported from.
    position = await last_record_id(client)
    stored = expired = older = read = size = 0
    batch: list[Command] = []
    clock = await read_redis_clock(client)

    async def store() -> None:
        nonlocal stored, older, size
        if batch:
            on_stored(stored)
        replies = await execute_commands(client, batch)
        stored += sum(replies)
        older += len(replies) - sum(replies)
        batch.clear()
        size = 0
        if replies:
            on_stored(stored)
        progress(read)

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            command = _put_command(line, clock.now(), position)
        except ImportLineError as error:
            await store()  # the lines before it
            raise ImportLineError(f"line {number}: {error}") from None
        read += 1
        if command is None:
            expired += 1
            continue
        batch.append(command)
        size += len(line)
        if len(batch) >= _BATCH_ENTRIES or size >= _BATCH_BYTES:
            await store()
    await store()
    return ImportResult(stored=stored, expired=expired, older=older)


def _put_command(line: bytes, now: float, purge_position: bytes) -> Command | None:
    """The command that stores a line's entry; None if it has expired. Raises ImportLineError."""
    if len(line) > MAX_LINE:
        raise ImportLineError(f"more than {MAX_LINE} bytes")
    try:
        parsed = _decode_line(line)
    # RecursionError: deeply nested JSON.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImportLineError(f"not an entry: {error}") from None
    fields = {
        name.encode(): value.base64 if isinstance(value, _Base64Value) else value.encode()
        for name, value in parsed.fields.items()
    }
    fields[b"purges"] = purge_position
    entry = decode_entry(fields)
    if entry is None:
        raise ImportLineError(invalid_entry_reason(fields))
    remaining_ms = int((parsed.expires - now) * 1000)
    if remaining_ms <= 0:
        return None
    pairs = [part for field in fields.items() for part in field]
    return ("EVAL", _PUT_UNLESS_NEWER_SCRIPT, 1, parsed.key, repr(entry.created), remaining_ms, *pairs)


def read_lines(read_line: Callable[[int], bytes]) -> Iterable[bytes]:
    """The lines of a file, given its `readline`. Of a line that is too long, only MAX_LINE + 1 bytes."""
    while line := read_line(MAX_LINE + 1):
        yield line
