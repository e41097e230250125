"""The size of entries in Redis, and the cost of hits when many entries are stored.

    .venv/bin/python -m benchmarks.entries                   # one entry of each kind
    .venv/bin/python -m benchmarks.entries --many 100000     # that many chats of 500 tokens

One of each kind: a stream as vLLM 0.32 sends it (benchmarks/streamed.py) is recorded event by event, with the default
`max_entry`, and written by the router's own store to a redis-server. `stored` is the length of the key and of all
field names and values; `memory` is the result of `MEMORY USAGE key SAMPLES 0`, which includes Redis' own structures.
`entries_per_gb` is the number of such entries in `maxmemory 1gb`, 2^30 bytes. `came` is the length of the events as
the engine sent them. Nothing is timed.

Many: responses that differ in id, text and key are written in the same way to one redis-server without persistence.
`memory` is the growth of `used_memory`; `rss` is resident memory. The time to create and write them is not measured.
Then one router process serves them over HTTP to 16 connections with consecutive requests. Latency is the time from the
write of the request until the last byte of the response, at the client, which shares the machine with all other
processes; `cpu_ms` is the router's own CPU time per hit. `local` is the setting. `uniform` requests any of all entries,
`popular` any of the first 1,000, each of which was requested once before. Every response must be a hit.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.load import load
from benchmarks.processes import cpu_seconds, memory_kb, running_routers
from benchmarks.streamed import Stream, chat, prose, request, shapes
from router.core.cache.key import ContextMarkers
from router.core.cache.key_derivation import derive_cache_key, split_parts
from router.core.cache.miss_reason import fingerprint_request
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.core.types import DEFAULT_TENANT, Entry
from router.settings import CacheSettings
from tests.support.endpoints import make_recorder
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.store_fixture import StoreFixture

TOKENS: Final = 500
GB: Final = 1 << 30
POPULAR: Final = 1000
WRITTEN_AT_ONCE: Final = 100
LARGE: Final = 64  # bytes; longer fields are shown by name


def entry_of(stream: Stream) -> tuple[str, Entry] | NotStoredReason:
    """The key and the entry that a router stores for a stream, or the reason for storing nothing."""
    request = parse_request(ENDPOINT_BY_PATH[stream.path], msgspec.json.encode(stream.request))
    recorder = make_recorder(request.endpoint, CacheSettings().max_entry)
    for event in stream.events:
        recorder.feed(event)
    return stored_as(request, recorder.recorded_response(request), 20 * stream.tokens)


def stored_as(
    request: InferenceRequest, recording: RecordedResponse | NotStoredReason, generation_ms: int
) -> tuple[str, Entry] | NotStoredReason:
    """The key and the entry of a recorded response."""
    if isinstance(recording, NotStoredReason):
        return recording
    parts = split_parts(request, ContextMarkers())
    key = derive_cache_key(parts, tenant=DEFAULT_TENANT, model="bare", revision="")
    halves = fingerprint_request(key, parts)
    entry = Entry(
        body=recording.body, stream=recording.stream, prompt_tokens=recording.prompt_tokens,
        completion_tokens=recording.completion_tokens, digest=key.digest, model="bare", engine="bare", task="chat",
        created=int(1000 * time.time()) / 1000, ttl=CacheSettings().ttl, stale=CacheSettings().stale_if_error,
        generation_ms=generation_ms, question=halves.question, params=halves.params,
    )  # fmt: skip
    return key.text, entry


async def one_of_each(redis: RedisServer, store: StoreFixture) -> None:
    for kind, stream in shapes():
        came = sum(map(len, stream.events))
        result = entry_of(stream)
        if isinstance(result, NotStoredReason):
            report(kind=kind, tokens=stream.tokens, came=came, not_stored=result)
            continue
        key, entry = result
        if await store.put(key, entry) != "stored":
            raise RuntimeError(kind)
        fields: dict[bytes, bytes] = await redis.command_bytes("HGETALL", key)
        memory = await redis.command_bytes("MEMORY", "USAGE", key, "SAMPLES", 0)
        stored = len(key) + sum(len(name) + len(value) for name, value in fields.items())
        report(
            kind=kind, tokens=stream.tokens, came=came, stored=stored, memory=memory,
            **{name.decode(): len(value) for name, value in fields.items() if len(value) > LARGE},
            text_per_token=round(len(stream.text.encode()) / stream.tokens, 2),
            stored_per_token=round(stored / stream.tokens, 2), memory_per_token=round(memory / stream.tokens, 2),
            entries_per_gb=GB // memory,
        )  # fmt: skip


async def write_many(redis: RedisServer, store: StoreFixture, count: int) -> None:
    empty = await redis.command_bytes("INFO", "memory")
    for first in range(0, count, WRITTEN_AT_ONCE):
        numbers = range(first, min(first + WRITTEN_AT_ONCE, count))
        results = [entry_of(chat(TOKENS, number + 1)) for number in numbers]
        written = [store.put(*result) for result in results if not isinstance(result, NotStoredReason)]
        if await asyncio.gather(*written) != ["stored"] * len(results):
            raise RuntimeError("not all entries were stored")
    full = await redis.command_bytes("INFO", "memory")
    memory = (full["used_memory"] - empty["used_memory"]) / count
    per_token = round(memory / TOKENS, 2)
    report(
        entries=count, tokens=TOKENS, memory=round(memory), memory_per_token=per_token,
        entries_per_gb=int(GB / memory), used_memory_mb=round(full["used_memory"] / 1e6),
        rss_mb=round(full["used_memory_rss"] / 1e6),
    )  # fmt: skip


async def hits(router: RouterProcess, local: str, name: str, bodies: Iterator[bytes], requests: int) -> None:
    started, cpu = time.perf_counter(), cpu_seconds(router.process.pid)
    result = await load(router.port, bodies, connections=16, requests=requests)
    took, cpu = time.perf_counter() - started, cpu_seconds(router.process.pid) - cpu
    if set(result.caches) != {"HIT"}:
        raise RuntimeError(f"X-Cache was {dict(result.caches)}")
    report(
        local=local, asked=name, requests=requests, p50_ms=result.total_ms(0.5), p99_ms=result.total_ms(0.99),
        per_second=round(requests / took), cpu_ms=round(cpu / requests * 1000, 4),
        router_rss_mb=round(memory_kb(router.process.pid) / 1e3),
    )  # fmt: skip


def any_of(count: int) -> Iterator[bytes]:
    rng = Random(count)
    while True:
        yield body(rng.randrange(count))


def body(number: int) -> bytes:
    return msgspec.json.encode(request("/v1/chat/completions", number + 1))


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", type=int, default=0, help="number of different chats to store before the hits")
    parser.add_argument("--requests", type=int, default=20_000, help="number of measured hits for each setting")
    arguments = parser.parse_args()
    redis = RedisServer()
    store = StoreFixture(redis.url, timeout=30)
    try:
        await redis.start()
        await store.start()
        report(redis=(await redis.command_bytes("INFO", "server"))["redis_version"], tokens_of_prose=len(prose()))
        if not arguments.many:
            await one_of_each(redis, store)
            return
        await write_many(redis, store, arguments.many)
        popular = min(POPULAR, arguments.many)
        for local in ("0B", "64MiB"):
            async with running_routers(local=local, redis=redis) as (router,):
                await hits(router, local, "uniform", any_of(arguments.many), arguments.requests)
                await load(router.port, map(body, range(popular)), connections=16, requests=popular)
                await hits(router, local, "popular", any_of(popular), arguments.requests)
    finally:
        await store.aclose()
        redis.remove()


if __name__ == "__main__":
    asyncio.run(main())
