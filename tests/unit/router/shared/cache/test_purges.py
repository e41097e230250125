"""The guarantees of Purges, and of stores that use it: no order of events leaves a purged entry behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.core.types import Entry
from router.net.redis.pipeline import RedisDownError
from router.shared.cache import purges as purges_module
from router.shared.cache.purges import BEGINNING, Purges
from tests.support.redis_process import RedisServer
from tests.support.store_fixture import StoreFixture
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = f"rh:1:acme:llama:{'5' * 16}:{'6' * 16}:{'7' * 32}"
OTHER = KEY.replace("acme", "beta")
ENTRY = Entry(
    digest="d" * 64, body=b"{}", stream=None, model="llama", engine="e", task="chat",
    created=1700000000.0, ttl=60.0, prompt_tokens=1, completion_tokens=1, generation_ms=1, documents=("doc-1",),
)  # fmt: skip
ACME = EntryFilter(tenant="acme")
OpenStore = Callable[[], Awaitable[StoreFixture]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_store(redis_server: RedisServer, redis: Any) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def make() -> StoreFixture:
            store = StoreFixture(redis_server.url)
            stack.push_async_callback(store.aclose)
            await store.start()
            await store.purges.load()
            return store

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: OpenStore) -> StoreFixture:
    return await open_store()


async def add_record(redis: Any, scope: EntryFilter | bytes) -> None:
    """Appends a purge record to the stream, the first step of a purge."""
    await redis.xadd(PURGE_LOG_KEY, {"scope": scope if isinstance(scope, bytes) else msgspec.json.encode(scope)})


async def purged(redis: Any, scope: EntryFilter) -> None:
    """Purges as an administrator does: first the record, then the matching entries."""
    await add_record(redis, scope)
    async for key in redis.scan_iter(match=scope.key_pattern):
        if scope.matches(key):
            await redis.delete(key)


# -- notification -----------------------------------------------------------------------------------------------------


async def test_each_purge_becomes_known_once_and_in_order(store: StoreFixture, redis: Any) -> None:
    events: list[EntryFilter] = []
    purges = Purges(store.pipeline, events.append)
    await purges.load()
    scopes = [EntryFilter(tenant=f"t{n}") for n in range(5)]
    for scope in scopes:
        await add_record(redis, scope)
        await purges.catch_up()
    await purges.catch_up()
    assert events == scopes


async def test_purges_from_before_a_process_started_do_not_affect_its_responses(
    redis: Any, open_store: OpenStore
) -> None:
    await add_record(redis, ACME)
    store = await open_store()
    assert store.purges.last_position > BEGINNING
    assert await store.put(KEY, ENTRY, store.purges.last_position) == "stored"


async def test_a_response_started_before_the_first_read_is_not_stored_if_anything_was_purged(
    redis: Any, open_store: OpenStore
) -> None:
    await add_record(redis, EntryFilter(tenant="somebody-else"))
    store = await open_store()
    assert await store.put(KEY, ENTRY, BEGINNING) == "dropped"


async def test_two_processes_that_purge_learn_of_each_other(open_store: OpenStore, redis: Any) -> None:
    one, other = await open_store(), await open_store()
    for store, scope in ((one, ACME), (other, EntryFilter(model="llama"))):
        await store.command("XADD", PURGE_LOG_KEY, "*", "scope", msgspec.json.encode(scope))
    for store in (one, other):
        await store.purges.catch_up()
        assert store.purges.covers(KEY, (), BEGINNING)
        assert store.purges.covers(OTHER, (), BEGINNING), "by the other's"
    assert one.purges.last_position == other.purges.last_position


async def test_any_number_of_purges_is_caught_up_with(
    store: StoreFixture, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges_module, "_PAGE", 3)
    start_position = store.purges.last_position
    await add_record(redis, ACME)
    for n in range(10):
        await add_record(redis, EntryFilter(tenant=f"t{n}"))
    await store.purges.catch_up()
    assert store.purges.covers(KEY, (), start_position)
    assert store.purges.covers(KEY.replace("acme", "t9"), (), start_position)


async def test_the_first_purge_after_redis_lost_all_is_known_too(store: StoreFixture, redis: Any) -> None:
    await add_record(redis, ACME)
    await store.purges.catch_up()
    start_position = store.purges.last_position
    await redis.flushall()

    async def is_later() -> bool:
        """Redis numbers records by the millisecond, and the numbers before were lost."""
        seconds, micros = await redis.time()
        return bool(seconds * 1000 + micros // 1000 > start_position[0])

    await eventually(is_later)
    await add_record(redis, EntryFilter(tenant="beta"))
    await store.purges.catch_up()
    assert store.purges.covers(OTHER, (), start_position)
    assert store.purges.covers(KEY, (), start_position), "unknown purges may have been lost, too"
    assert not store.purges.covers(OTHER, (), store.purges.last_position), "a generation that starts now is newer"


async def test_without_redis_a_change_is_skipped_and_catching_up_reports_it(own_redis: RedisServer) -> None:
    store = StoreFixture(own_redis.url)
    opening = asyncio.ensure_future(store.start())
    await store.purges.try_catch_up()
    with pytest.raises(RedisDownError):
        await store.purges.catch_up()
    opening.cancel()
    await store.aclose()


# -- coverage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "meant"),
    [
        (EntryFilter(all=True), True), (EntryFilter(key=KEY), True), (EntryFilter(tenant="acme", model="llama"), True),
        (EntryFilter(system="5" * 16), True), (EntryFilter(rag="6" * 16), True), (EntryFilter(document="doc-1"), True),
        (EntryFilter(key=OTHER), False), (EntryFilter(tenant="acme", model="mistral"), False), (EntryFilter(system="6" *
        16), False), (EntryFilter(document="doc-2"), False), (EntryFilter(), False),
    ],
)  # fmt: skip
async def test_a_response_is_covered_if_a_purge_since_its_start_matches_it(
    store: StoreFixture, redis: Any, scope: EntryFilter, meant: bool
) -> None:
    start_position = store.purges.last_position
    await add_record(redis, scope)
    await store.purges.catch_up()
    assert store.purges.covers(KEY, ("doc-1",), start_position) is meant
    assert not store.purges.covers(KEY, ("doc-1",), store.purges.last_position), "a generation that starts now is newer"


async def test_a_response_older_than_all_remembered_purges_may_have_been_covered(
    redis: Any, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges_module, "MAX_PURGES", 3)
    store = await open_store()
    start_position = [store.purges.last_position]
    for n in range(6):
        await add_record(redis, EntryFilter(tenant=f"t{n}"))
        await store.purges.catch_up()
        start_position.append(store.purges.last_position)
    assert [store.purges.covers(KEY, (), mark) for mark in start_position] == [
        True,
        True,
        True,
        False,
        False,
        False,
        False,
    ]


# -- concurrent purges and writes -------------------------------------------------------------------------------------


async def test_an_unannounced_purge_before_the_write_reverts_it(store: StoreFixture, redis: Any) -> None:
    start_position = store.purges.last_position
    await purged(redis, ACME)
    assert await store.put(KEY, ENTRY, start_position) == "purged"
    assert await store.get(KEY) is None


async def test_a_known_purge_before_the_write_prevents_it(store: StoreFixture, redis: Any) -> None:
    start_position = store.purges.last_position
    await add_record(redis, ACME)
    await store.purges.catch_up()
    written = store.put(KEY, ENTRY, start_position)
    assert written.done()
    assert await written == "purged"
    assert not await redis.exists(KEY)


async def test_a_purge_after_the_write_finds_the_entry(store: StoreFixture, redis: Any) -> None:
    assert await store.put(KEY, ENTRY, store.purges.last_position) == "stored"
    await purged(redis, ACME)
    assert await store.get(KEY) is None


async def test_a_concurrent_write_and_purge_leave_nothing(open_store: OpenStore, redis: Any) -> None:
    store = await open_store()
    results = set()
    for n in range(60):
        start_position = store.purges.last_position

        async def after(steps: int) -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
            await purged(redis, ACME)

        purging = asyncio.ensure_future(after(n % 12))
        for _ in range(n // 12):
            await asyncio.sleep(0)
        results.add(await store.put(KEY, ENTRY, start_position))
        await purging
        assert await store.get(KEY) is None
        assert not await redis.exists(KEY)
    assert results <= {"stored", "purged"}


async def test_a_response_that_a_purge_does_not_cover_is_stored(store: StoreFixture, redis: Any) -> None:
    start_position = store.purges.last_position
    await add_record(redis, ACME)
    assert await store.put(OTHER, ENTRY, start_position) == "stored"


async def test_a_response_started_after_a_purge_is_stored(store: StoreFixture, redis: Any) -> None:
    await add_record(redis, ACME)
    await store.purges.catch_up()
    assert await store.put(KEY, ENTRY, store.purges.last_position) == "stored"


# -- invalid records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("SET", PURGE_LOG_KEY, "x"), ("HSET", PURGE_LOG_KEY, "a", "b"), ("LPUSH", PURGE_LOG_KEY, "x")]
)
async def test_another_type_at_the_key_of_the_log_does_no_harm(
    redis_server: RedisServer, redis: Any, command: tuple[str, ...]
) -> None:
    await redis.execute_command(*command)
    store = StoreFixture(redis_server.url)
    await store.start()
    assert store.is_up
    await store.purges.load()
    await store.purges.catch_up()
    assert store.purges.loaded
    assert await store.put(KEY, ENTRY, store.purges.last_position) == "stored"
    await store.aclose()


@pytest.mark.parametrize(
    "record",
    [b"", b"{", b"[]", b"null", b'{"tenant":1}', b'{"unknown":"x"}', b'{"tenant":"\xff"}', b'{"document":"\xff\xfe"}',
     b"[" * 100_000, b'{"all":"yes"}'],
    ids=repr,
)  # fmt: skip
async def test_an_invalid_record_is_ignored(
    store: StoreFixture, redis: Any, record: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    start_position = store.purges.last_position
    await add_record(redis, record)
    assert await asyncio.wait_for(store.put(OTHER, ENTRY, start_position), TEST_TIMEOUT) == "stored"
    assert "cannot be decoded" in caplog.text
    await add_record(redis, ACME)
    assert await store.put(KEY, ENTRY, start_position) == "purged"


async def test_a_record_without_a_filter_is_ignored(store: StoreFixture, redis: Any) -> None:
    start_position = store.purges.last_position
    await redis.xadd(PURGE_LOG_KEY, {"something": "else"})
    await redis.xadd(PURGE_LOG_KEY, {"scope": msgspec.json.encode(ACME), "at": "now"})
    assert await store.put(KEY, ENTRY, start_position) == "purged"
    assert await store.put(OTHER, ENTRY, start_position) == "stored"
