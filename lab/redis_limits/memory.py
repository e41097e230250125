"""Memory for many entries of one kind, and the time that Redis needs to load them again.

One entry is recorded and encoded by the router's own code (benchmarks/entries.py), and written as often as asked, with
the router's own command, under different keys of the same length. Redis shares no content among keys, so equal contents
take as much memory as different ones. Nothing is evicted: there is no limit.

- `entry_bytes`: MEMORY USAGE of one entry. `used_per_entry`: growth of `used_memory` per entry; `tables_per_entry`: of
  that, the hash tables of all keys and of their expiries (MEMORY STATS), whose sizes are powers of two.
- `fragmentation`: resident memory divided by `used_memory`. `growth`: used_memory at each tenth of the entries.
- `save_cpu_s`, `load_cpu_s`: CPU seconds of SAVE and of a start with that file, in which Redis executes no command;
  `save_s`, `load_s` by the clock.
- `hit_counts`, `purge_log`: MEMORY USAGE of the largest that they become, 1,000 hit counts of a tenant and 10,000
  purges. A router's tracking of keys is by prefix, and takes no memory per entry.
"""

import asyncio
import base64
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.entries import entry_of, stored_as
from benchmarks.streamed import chat
from lab.redis_limits.replay_client import count_commands, read_replies
from lab.redis_limits.usage import cores, pin, read_usage
from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY, hits_key
from router.core.endpoints.recording.recorded_response import NotStoredReason
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.core.types import DEFAULT_TENANT, Entry
from router.net.redis.commands import encode_command
from router.settings import CacheSettings
from router.shared.cache.hit_counter import HitCounter
from router.shared.cache.purges import MAX_PURGES, nonce_field
from router.store.entry_store import encode_put
from tests.support.endpoints import record_body
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

DIMENSIONS: Final = 1024
LOAD_TIMEOUT: Final = 600.0  # seconds
_WRITTEN_AT_ONCE: Final = 200
_MEASURED: Final = 10  # readings while entries are written

Result = tuple[str, Entry] | NotStoredReason


def _embedding(encoding_format: str) -> Result:
    """A normalized vector of 32-bit floats, as vLLM sends it."""
    rng = Random(1)
    numbers = [rng.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(number * number for number in numbers) ** 0.5
    packed = struct.pack(f"<{DIMENSIONS}f", *(number / length for number in numbers))
    vector = list(struct.unpack(f"<{DIMENSIONS}f", packed))
    embedding: Any = vector if encoding_format == "float" else base64.b64encode(packed).decode()
    path = "/v1/embeddings"
    asked = {"model": "bare", "input": "What is the sea?", "encoding_format": encoding_format}
    request = parse_request(ENDPOINT_BY_PATH[path], msgspec.json.encode(asked))
    body = msgspec.json.encode({
        "id": "embd-0123456789abcdef", "object": "list", "created": 1, "model": "bare",
        "data": [{"index": 0, "object": "embedding", "embedding": embedding}],
        "usage": {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0, "prompt_tokens_details": None},
    })  # fmt: skip
    return stored_as(request, record_body(request, body, CacheSettings().max_entry), 20)


KINDS: Final[Mapping[str, Callable[[], Result]]] = {
    "chat, 60 tokens": lambda: entry_of(chat(60)),
    "chat, 500 tokens": lambda: entry_of(chat(500)),
    "embedding, 1,024 floats": lambda: _embedding("float"),
    "embedding, 1,024 floats in base64": lambda: _embedding("base64"),
}


async def measure(kind: str, entries: int) -> dict[str, Any]:
    result = KINDS[kind]()
    if isinstance(result, NotStoredReason):
        raise ValueError(f"not stored: {result}")  # noqa: TRY004 - the type is not what is wrong
    key, entry = result
    server = RedisServer()
    try:
        await server.start()
        await pin(server, cores()[0])
        empty = await server.command("INFO", "memory")
        growth = await _write(server, key, encode_put(key, entry, (0, 0), entry.ttl + entry.stale), entries)
        full = await server.command("INFO", "memory")
        tables = _pairs(_pairs(await server.command("MEMORY", "STATS"))["db.0"])
        one = await server.command("RANDOMKEY")
        facts = {
            "kind": kind, "entries": entries,
            "entry_bytes": await server.command("MEMORY", "USAGE", one, "SAMPLES", 0),
            "used_per_entry": round((full["used_memory"] - empty["used_memory"]) / entries),
            "tables_per_entry": round(sum(tables.values()) / entries),
            "used_mb": round(full["used_memory"] / 1e6), "rss_mb": round(full["used_memory_rss"] / 1e6),
            "fragmentation": full["mem_fragmentation_ratio"], "growth": growth,
        }  # fmt: skip
        facts |= await _saved_and_loaded(server, entries)
        facts |= await _structures(server, key)
    finally:
        server.remove()
    return facts


async def _write(server: RedisServer, key: str, put: bytes, entries: int) -> list[int]:
    """Writes the entries; returns used_memory after each tenth."""
    own = key[:-12].encode()
    before, after = put.split(key.encode())
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server.socket))
    growth, step = [], max(_WRITTEN_AT_ONCE, entries // _MEASURED)
    with connection:
        for first in range(0, entries, _WRITTEN_AT_ONCE):
            numbers = range(first, min(first + _WRITTEN_AT_ONCE, entries))
            connection.sendall(b"".join(b"%b%b%012x%b" % (before, own, number, after) for number in numbers))
            read_replies(connection, len(numbers))
            if first % step < _WRITTEN_AT_ONCE:
                growth.append((await server.command("INFO", "memory"))["used_memory"])
    if await server.command("DBSIZE") != entries:
        raise RuntimeError("not all entries were stored")
    return growth


async def _saved_and_loaded(server: RedisServer, entries: int) -> dict[str, Any]:
    """Saves all entries, and starts another server with the file."""
    started, before = time.monotonic(), await read_usage(server)
    await asyncio.to_thread(_save, server)
    save_s = time.monotonic() - started
    saved = (await read_usage(server)).minus(before)
    size = (server.folder / "dump.rdb").stat().st_size
    server.kill()
    restarted = RedisServer("--dir", str(server.folder))
    try:
        started = time.monotonic()
        with contextlib.suppress(TimeoutError):  # it is still loading
            await restarted.start()
        await eventually(lambda: _has_loaded(restarted, entries), timeout=LOAD_TIMEOUT)
        load_s = time.monotonic() - started
        loaded = await read_usage(restarted)
    finally:
        restarted.remove()
    return {
        "rdb_mb": round(size / 1e6), "save_cpu_s": round(saved.cpu, 2), "save_s": round(save_s, 2),
        "load_cpu_s": round(loaded.cpu, 2), "load_s": round(load_s, 2),
    }  # fmt: skip


def _save(server: RedisServer) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server.socket))
    with connection:
        connection.sendall(encode_command(("SAVE",)))
        read_replies(connection, 1)


async def _has_loaded(server: RedisServer, entries: int) -> bool:
    info = await server.command("INFO", "everything")
    return not info["loading"] and info.get("db0", {}).get("keys") == entries


async def _structures(server: RedisServer, key: str) -> dict[str, int]:
    """The memory of the hit counts and of the purge log at their largest, in an empty Redis."""
    (server.folder / "dump.rdb").unlink()
    await server.start()
    counter = HitCounter()
    for number in range(10_000):
        counter.record_hit(f"{key[:-12]}{number:012x}")
    scope = EntryFilter(key=key)
    commands = counter.take_commands()
    commands += [
        ("XADD", PURGE_LOG_KEY, "MAXLEN", "~", MAX_PURGES, "*", "scope", scope.to_json(), *nonce_field())
        for _ in range(MAX_PURGES)
    ]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server.socket))
    with connection:
        for first in range(0, len(commands), 1000):
            batch = b"".join(map(encode_command, commands[first : first + 1000]))
            connection.sendall(batch)
            read_replies(connection, count_commands(batch))
    return {
        "hit_counts": await server.command("MEMORY", "USAGE", hits_key(DEFAULT_TENANT), "SAMPLES", 0),
        "purge_log": await server.command("MEMORY", "USAGE", PURGE_LOG_KEY, "SAMPLES", 0),
    }


def _pairs(reply: Any) -> dict[str, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
