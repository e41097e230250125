"""The promises of EntryStore, and of the pipeline below it, with a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.core.types import Entry
from router.net.redis.pipeline import RedisDownError
from tests.support.redis_process import RedisServer
from tests.support.store_fixture import StoreFixture
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OpenStore = Callable[..., Awaitable[StoreFixture]]

ENTRY = Entry(
    digest="d" * 64,
    body=b'{"a": "\xff\x00"}',
    stream=b"=\x00\r\n\xff",
    model="llama",
    engine="llama-chat",
    task="chat",
    created=1700000000.125,
    ttl=60.0,
    prompt_tokens=3,
    completion_tokens=5,
    generation_ms=12,
)


@pytest_asyncio.fixture(loop_scope="session")
async def open_store() -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def make(server: RedisServer, **options: Any) -> StoreFixture:
            store = StoreFixture(server.url, **options)
            await store.start()
            stack.push_async_callback(store.aclose)
            return store

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def store(redis_server: RedisServer, redis: Any, open_store: OpenStore) -> StoreFixture:
    return await open_store(redis_server)


# -- put and get ------------------------------------------------------------------------------------------------------


async def test_an_entry_is_found_by_the_next_get(store: StoreFixture) -> None:
    written = store.put("k", ENTRY)
    assert await store.get("k") == ENTRY
    assert await written == "stored"


async def test_an_entry_has_no_more_fields_than_were_written(store: StoreFixture) -> None:
    entry = msgspec.structs.replace(ENTRY, stream=None)
    store.put("k", entry)
    assert await store.get("k") == entry


async def test_another_process_finds_an_entry_in_redis(
    redis_server: RedisServer, store: StoreFixture, open_store: OpenStore
) -> None:
    other = await open_store(redis_server)
    assert await other.get("k") is None
    await store.put("k", ENTRY)
    assert await other.get("k") == ENTRY


async def test_concurrent_lookups_each_get_their_own_entry(store: StoreFixture) -> None:
    entries = {f"k{n}": msgspec.structs.replace(ENTRY, prompt_tokens=n) for n in range(300)}
    for key, entry in entries.items():
        store.put(key, entry)
    results = await asyncio.gather(*(store.get(key) for key in entries))
    assert results == list(entries.values())


async def test_a_cancelled_caller_takes_nothing_from_the_others(store: StoreFixture) -> None:
    store.put("k", ENTRY)
    waiting = [asyncio.ensure_future(store.get("k")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    assert [await waiting[0], await waiting[2]] == [ENTRY, ENTRY]


# -- every entry has an expiry, and no field of an older one ----------------------------------------------------------


async def test_every_entry_expires(store: StoreFixture, redis: Any) -> None:
    for ttl in (60.0, 0.0001):
        await store.put(f"k{ttl}", msgspec.structs.replace(ENTRY, ttl=ttl))
    assert 0 < await redis.pttl("k60.0") <= 60_000
    await eventually(lambda: _missing(store, "k0.0001"))


async def _missing(store: StoreFixture, key: str) -> bool:
    return await store.get(key) is None


async def test_an_entry_keeps_no_field_of_the_one_before(store: StoreFixture, redis: Any) -> None:
    await store.put("k", ENTRY)
    json_only = msgspec.structs.replace(ENTRY, stream=None)
    await store.put("k", json_only)
    assert await store.get("k") == json_only
    assert not await redis.hexists("k", "stream")


async def test_an_entry_replaces_an_invalid_value(store: StoreFixture) -> None:
    await store.command("SET", "k", "a string")
    assert await store.put("k", ENTRY) == "stored"
    assert await store.get("k") == ENTRY


async def test_an_entry_that_may_replace_no_younger_one_replaces_all_else(store: StoreFixture, redis: Any) -> None:
    younger = msgspec.structs.replace(ENTRY, created=ENTRY.created + 0.001, stream=None)
    for entry, kept in ((ENTRY, ENTRY), (younger, younger), (ENTRY, younger), (younger, younger)):
        assert await store.put("k", entry, keeps_younger=True) == "stored"
        assert await store.get("k") == kept
        assert 0 < await redis.pttl("k") <= 60_000
    for words in (("SET", "k", "a string"), ("HSET", "k", "created", "no number")):
        await store.command("DEL", "k")
        await store.command(*words)
        assert await store.put("k", ENTRY, keeps_younger=True) == "stored"
        assert await store.get("k") == ENTRY


# -- invalid entries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "k", "string"), ("LPUSH", "k", "list"), ("HSET", "k", "digest", "only"), ("HSET", "k", "body", "only"),
        ("XADD", "k", "*", "a", "b"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_a_value_that_is_not_an_entry_is_a_miss(
    store: StoreFixture, redis: Any, command: tuple[str, ...]
) -> None:
    await redis.execute_command(*command)
    assert await store.get("k") is None
    assert store.is_up


@pytest.mark.parametrize("field", ["digest", "model", "engine", "task", "created", "ttl", "prompt_tokens"])
@pytest.mark.parametrize("value", [None, b"\xff\xfe"], ids=["gone", "not-text"])
async def test_a_corrupt_field_is_a_miss(store: StoreFixture, redis: Any, field: str, value: bytes | None) -> None:
    await store.put("k", ENTRY)
    await (redis.hdel("k", field) if value is None else redis.hset("k", field, value))
    assert await store.get("k") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("ttl", "nan"), ("ttl", "inf"), ("created", "-inf"), ("completion_tokens", "-1"), ("engine", "x\r\ny: z")],
)
async def test_a_value_that_headers_and_counters_cannot_hold_is_a_miss(
    store: StoreFixture, redis: Any, field: str, value: str
) -> None:
    await store.put("k", ENTRY)
    await redis.hset("k", field, value)
    assert await store.get("k") is None


# -- defects in the router --------------------------------------------------------------------------------------------


async def test_an_exception_in_a_lookup_fails_its_callers_and_not_later_ones(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("k", ENTRY)
    with monkeypatch.context() as broken:
        broken.setattr(store.backend, "execute", lambda commands, timeout: 1 / 0)
        written = store.put("k", ENTRY)
        for one in await asyncio.gather(*(store.get("k") for _ in range(3)), return_exceptions=True):
            assert isinstance(one, RedisDownError)
        assert await written == "unavailable"
    assert await store.get("k") == ENTRY
    assert await store.put("k", ENTRY) == "stored"


async def test_an_exception_while_connecting_does_not_end_reconnecting(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = StoreFixture(redis_server.url)
    monkeypatch.setattr(store.backend, "execute", lambda *_: 1 / 0)
    opening = asyncio.ensure_future(store.start())
    await eventually(lambda: "the probe of Redis failed" in caplog.text)
    assert not store.is_up
    opening.cancel()
    await store.aclose()


# -- Redis is down ----------------------------------------------------------------------------------------------------


async def test_a_killed_redis_is_detected_at_once_and_used_again_when_it_is_back(
    own_redis: RedisServer, open_store: OpenStore
) -> None:
    await own_redis.start()
    store = await open_store(own_redis)
    assert store.is_up
    own_redis.kill()
    with pytest.raises(RedisDownError):
        await store.get("k")
    assert await store.put("k", ENTRY) == "unavailable"
    await own_redis.start()
    await asyncio.wait_for(store.wait_until_up(), TEST_TIMEOUT)
    assert await store.get("k") is None
    assert await store.put("k", ENTRY) == "stored"


async def test_a_store_opens_without_redis_and_connects_later(own_redis: RedisServer, open_store: OpenStore) -> None:
    opening = asyncio.ensure_future(open_store(own_redis))
    await asyncio.sleep(0)
    await own_redis.start()
    store = await opening
    await asyncio.wait_for(store.wait_until_up(), TEST_TIMEOUT)
    assert await store.put("k", ENTRY) == "stored"


async def test_what_was_generated_without_redis_from_the_start_is_dropped_and_not_purged(
    own_redis: RedisServer, open_store: OpenStore
) -> None:
    store = await open_store(own_redis)
    since = store.purges.last_position
    assert await store.put("k", ENTRY) == "dropped"
    await own_redis.start()
    await asyncio.wait_for(store.wait_until_up(), TEST_TIMEOUT)
    assert await store.put("k", ENTRY, since) == "dropped"
    assert await store.put("k", ENTRY) == "stored"


async def test_a_write_that_redis_loses_raises_no_exception(own_redis: RedisServer, open_store: OpenStore) -> None:
    await own_redis.start()
    store = await open_store(own_redis, timeout=1.0)
    own_redis.freeze()
    assert await store.put("k", ENTRY) == "unavailable"
    own_redis.thaw()


@pytest.mark.parametrize(
    ("setting", "value"), [("maxmemory", "1"), ("min-replicas-to-write", "1")], ids=["out-of-memory", "no-replicas"]
)
async def test_a_redis_that_refuses_writes_still_serves_its_entries(
    own_redis: RedisServer, open_store: OpenStore, setting: str, value: str
) -> None:
    await own_redis.start()
    store = await open_store(own_redis)
    await store.put("k", ENTRY)
    await own_redis.command("CONFIG", "SET", setting, value)
    assert await store.put("other", ENTRY) == "failed"
    assert store.is_up
    assert await store.get("k") == ENTRY


async def test_a_redis_that_has_become_a_replica_is_down_until_it_is_a_primary(
    own_redis: RedisServer, open_store: OpenStore
) -> None:
    await own_redis.start()
    store = await open_store(own_redis)
    await store.put("k", ENTRY)
    await own_redis.command("REPLICAOF", "127.0.0.1", "1")
    assert await store.put("other", ENTRY) == "unavailable"
    with pytest.raises(RedisDownError):
        await store.get("k")
    await own_redis.command("REPLICAOF", "NO", "ONE")
    await asyncio.wait_for(store.wait_until_up(), TEST_TIMEOUT)
    assert await store.get("k") == ENTRY


async def test_queued_writes_have_a_limit(own_redis: RedisServer, open_store: OpenStore) -> None:
    await own_redis.start()
    store = await open_store(own_redis, max_backlog=12_000)
    big = msgspec.structs.replace(ENTRY, body=b"x" * 4000, stream=None)
    first, second, third = (store.put(f"k{n}", big) for n in range(3))
    assert third.done()
    assert [await first, await second, await third] == ["stored", "stored", "dropped"]
    assert await store.put("k3", big) == "stored", "a finished write makes room"


async def test_closing_finishes_queued_writes(redis_server: RedisServer, redis: Any) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    written = store.put("k", ENTRY)
    await store.aclose()
    assert await written == "stored"
    assert await redis.exists("k")
