"""A purged entry is not served, even if its writer never learned of the purge, and the purge log may be lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.shared.cache import purges as purges_module
from router.shared.cache.purges import BEGINNING, PurgePosition, Purges
from router.store.admin.purge import purge
from router.store.entry_store import AttemptResult
from router.store.local_cache import LocalCache
from tests.support.entry_factory import make_entry
from tests.support.nonsense_redis import NONSENSE, NonsenseRedis
from tests.support.purge_log import logged_scopes
from tests.support.redis_process import RedisServer
from tests.support.store_fixture import StoreFixture
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = f"rh:1:acme:llama:{'5' * 16}:{'6' * 16}:{'7' * 32}"
OTHER = KEY.replace("acme", "beta")
ENTRY = make_entry(documents=("doc-1",))
ACME = EntryFilter(tenant="acme")
ALL = EntryFilter(all=True)
OpenStore = Callable[..., Awaitable[StoreFixture]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_store(redis_server: RedisServer, redis: Any) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def make(url: str = redis_server.url, **options: Any) -> StoreFixture:
            store = StoreFixture(url, **options)
            stack.push_async_callback(store.aclose)
            await store.start()
            return store

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: OpenStore) -> StoreFixture:
    return await open_store()


async def add_record(redis: Any, scope: EntryFilter, id_: str = "*") -> None:
    await redis.xadd(PURGE_LOG_KEY, {"scope": msgspec.json.encode(scope)}, id=id_)


# -- the reply to a write is lost -------------------------------------------------------------------------------------


async def put_without_reply(writer: StoreFixture, proxy: TcpProxy, since: PurgePosition | None = None) -> AttemptResult:
    """Redis executes the write, and the connection breaks in place of its reply."""
    executed, written = proxy.drop_replies_from(b"PEXPIRE"), writer.put(KEY, ENTRY, since)
    await executed.wait()
    proxy.cut("commands")
    return await written


@pytest.mark.parametrize("scope", [ACME, ALL, EntryFilter(key=KEY), EntryFilter(document="doc-1")], ids=str)
async def test_a_purged_entry_whose_write_lost_its_reply_is_a_miss_and_is_deleted(
    redis_server: RedisServer, client: Any, open_store: OpenStore, scope: EntryFilter
) -> None:
    async with TcpProxy(redis_server.socket) as proxy:
        writer, reader = await open_store(proxy.url), await open_store()
        start_position = writer.purges.last_position
        await purge(client, scope)
        assert await put_without_reply(writer, proxy, start_position) == "unavailable"
        assert await client.exists(KEY)
        assert await reader.get(KEY) is None
        assert await reader.get(KEY) is None
        assert not await client.exists(KEY)


async def test_an_entry_that_no_purge_covers_is_found_although_its_write_lost_its_reply(
    redis_server: RedisServer, client: Any, open_store: OpenStore
) -> None:
    async with TcpProxy(redis_server.socket) as proxy:
        writer, reader = await open_store(proxy.url), await open_store()
        await purge(client, EntryFilter(tenant="beta"))
        assert await put_without_reply(writer, proxy) == "unavailable"
        assert await reader.get(KEY) == ENTRY


async def test_a_reader_that_starts_after_the_purge_knows_it_too(client: Any, open_store: OpenStore) -> None:
    writer = await open_store()
    await writer.put(KEY, ENTRY)
    await add_record(client, ACME)  # and the purging process dies before it deletes anything
    assert await (await open_store()).get(KEY) is None


async def test_a_reader_that_is_behind_the_writer_catches_up(client: Any, open_store: OpenStore) -> None:
    reader, writer = await open_store(), await open_store()
    reader.purges.listening = True  # although the notification of the purge is still on its way
    await add_record(client, ACME)
    await writer.purges.catch_up()
    await writer.put(KEY, ENTRY)
    assert await reader.get(KEY) == ENTRY


async def test_an_entry_copied_before_its_purge_was_known_is_not_served_from_the_copy(
    client: Any, open_store: OpenStore
) -> None:
    writer = await open_store()
    purges: list[Purges] = []
    local = LocalCache(100_000, is_purged=lambda *arguments: purges[0].covers(*arguments))
    reader = await open_store(local=local, on_purged=lambda _: local.on_purge())
    purges.append(reader.purges)
    local.enable()
    for key in (KEY, OTHER):
        await writer.put(key, ENTRY)
        assert await reader.get(key) == ENTRY
        assert local.get(key) is not None
    await add_record(client, ACME)
    await reader.purges.catch_up()
    assert (local.get(KEY), local.get(OTHER) is not None, len(local)) == (None, True, 1)
    assert local.size > 0
    local.invalidate([OTHER])
    assert local.size == 0


async def test_an_entry_is_checked_against_all_later_purges_however_many(client: Any, open_store: OpenStore) -> None:
    writer = await open_store()
    await writer.put(KEY, ENTRY)
    await writer.put(OTHER, ENTRY)
    await add_record(client, ACME)
    batch = client.pipeline(transaction=False)
    for number in range(2500):
        batch.xadd(PURGE_LOG_KEY, {"scope": msgspec.json.encode(EntryFilter(document=f"d{number}"))})
    await batch.execute()
    for reader in (writer, await open_store()):
        assert (await reader.get(KEY), await reader.get(OTHER)) == (None, ENTRY)
        await writer.put(KEY, ENTRY, (0, 0))


_LOG = b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$3\r\nlog\r\n$6\r\nbegins\r\n"


@pytest.mark.parametrize("form", ["nothing", "a number", "records without ids"])
async def test_an_entry_is_deleted_if_the_purges_after_its_write_are_unreadable(form: str) -> None:
    async with NonsenseRedis(b":1\r\n", {"XRANGE": _LOG}) as nonsense:
        store = StoreFixture(nonsense.url)
        await store.start()
        assert await store.put(KEY, ENTRY) == "stored"
        nonsense.replies["XRANGE"] = NONSENSE[form]
        assert await store.put(KEY, ENTRY) == "unavailable"
        await store.aclose()
    assert KEY.encode() in nonsense.deleted


# -- many purges at once ----------------------------------------------------------------------------------------------


async def test_an_entry_counts_as_stored_after_all_unknown_purges_were_read(store: StoreFixture, client: Any) -> None:
    start_position = store.purges.last_position
    batch = client.pipeline(transaction=False)
    for number in range(2500):
        batch.xadd(PURGE_LOG_KEY, {"scope": msgspec.json.encode(EntryFilter(tenant=f"t{number}"))})
    await batch.execute()
    await add_record(client, ACME)
    assert await store.put(OTHER, ENTRY, start_position) == "stored"
    assert store.purges.covers(KEY, (), start_position)


async def test_a_purge_on_a_later_page_reverts_a_write(store: StoreFixture, client: Any) -> None:
    start_position = store.purges.last_position
    batch = client.pipeline(transaction=False)
    for number in range(1500):
        batch.xadd(PURGE_LOG_KEY, {"scope": msgspec.json.encode(EntryFilter(tenant=f"t{number}"))})
    await batch.execute()
    await add_record(client, ACME)
    assert await store.put(KEY, ENTRY, start_position) == "purged"
    assert not await client.exists(KEY)


# -- the log is lost --------------------------------------------------------------------------------------------------


async def test_a_log_whose_ids_go_back_prevents_storing_older_responses(store: StoreFixture, client: Any) -> None:
    await add_record(client, EntryFilter(tenant="beta"))
    await store.purges.catch_up()
    start_position = store.purges.last_position
    await client.delete(PURGE_LOG_KEY)
    await add_record(client, ACME, "5-1")  # by a slow clock
    assert await store.put(KEY, ENTRY, start_position) == "purged"
    await store.purges.catch_up()
    assert await store.put(KEY, ENTRY, start_position) == "purged"
    assert not await client.exists(KEY)


async def test_a_log_that_was_replaced_by_one_with_the_same_id_is_detected(store: StoreFixture, client: Any) -> None:
    start_position = store.purges.last_position
    await client.delete(PURGE_LOG_KEY)
    await add_record(client, ACME, "%d-%d" % start_position)  # noqa: UP031 - shorter so
    assert await store.put(KEY, ENTRY, start_position) == "purged"


async def test_after_the_log_went_back_its_ids_are_beyond_all_known_ones(store: StoreFixture, client: Any) -> None:
    start_position = store.purges.last_position
    await client.delete(PURGE_LOG_KEY)
    await add_record(client, EntryFilter(tenant="beta"), "5-1")
    await store.purges.catch_up()
    assert store.purges.last_position > start_position
    assert await store.put(KEY, ENTRY) == "stored"
    assert await store.get(KEY) == ENTRY
    await purge(client, ACME)
    await store.purges.catch_up()
    assert store.purges.covers(KEY, (), start_position)
    assert not store.purges.covers(KEY, (), store.purges.last_position)


async def test_an_entry_stored_before_the_log_was_lost_is_a_miss(
    store: StoreFixture, open_store: OpenStore, client: Any
) -> None:
    await store.put(KEY, ENTRY)
    await client.delete(PURGE_LOG_KEY)
    await add_record(client, EntryFilter(tenant="beta"), "5-1")
    assert await store.get(KEY) is None
    await store.put(KEY, ENTRY)
    assert await (await open_store()).get(KEY) == ENTRY


async def test_an_entry_with_a_position_beyond_the_log_is_a_miss(
    store: StoreFixture, open_store: OpenStore, client: Any
) -> None:
    await store.put(KEY, ENTRY)
    await client.delete(PURGE_LOG_KEY)
    await add_record(client, EntryFilter(tenant="beta"), "5-1")
    assert await (await open_store()).get(KEY) is None, "to a process that knows nothing of the log that was lost"


async def test_a_process_that_detects_lost_records_records_that_once_for_all(
    store: StoreFixture, open_store: OpenStore, client: Any
) -> None:
    other = await open_store()
    await add_record(client, ACME)
    for one in (store, other):
        await one.purges.catch_up()
    start_position = store.purges.last_position
    ((last, _),) = await client.xrevrange(PURGE_LOG_KEY, count=1)
    await client.xdel(PURGE_LOG_KEY, last)  # as in a failover to a replica that had not received it
    for one in (store, other):
        await one.purges.catch_up()
        assert one.purges.covers(OTHER, (), start_position)
        assert not one.purges.covers(OTHER, (), one.purges.last_position)
    assert await logged_scopes(client) == [ALL]
    assert store.purges.last_position == other.purges.last_position


async def test_a_lost_log_is_a_purge_of_everything_for_responses_in_progress(
    open_store: OpenStore, client: Any
) -> None:
    events: list[EntryFilter] = []
    store = await open_store(on_purged=events.append)
    await client.delete(PURGE_LOG_KEY)
    await store.purges.catch_up()
    assert events == [ALL]
    await store.purges.catch_up()
    assert events == [ALL]


async def test_records_trimmed_while_a_process_was_disconnected_may_have_covered_anything(
    store: StoreFixture, client: Any
) -> None:
    start_position = store.purges.last_position
    for number in range(5):
        await add_record(client, EntryFilter(tenant=f"t{number}"))
    await client.xtrim(PURGE_LOG_KEY, maxlen=2, approximate=False)
    await store.purges.catch_up()
    assert store.purges.covers(KEY, (), start_position)
    assert await logged_scopes(client) == [EntryFilter(tenant="t3"), EntryFilter(tenant="t4")], (
        "nothing was lost that others know"
    )


async def test_the_log_is_read_page_by_page(
    store: StoreFixture, open_store: OpenStore, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges_module, "_PAGE", 3)
    await store.put(KEY, ENTRY)
    for number in range(10):
        await add_record(client, ACME if number == 4 else EntryFilter(tenant=f"t{number}"))
    late = await open_store()
    assert (await late.get(KEY), late.purges.last_position > BEGINNING) == (None, True)


async def test_a_read_only_redis_gets_no_log_and_serves_its_entries(
    own_redis: RedisServer, open_store: OpenStore
) -> None:
    await own_redis.start()
    await own_redis.command("CONFIG", "SET", "min-replicas-to-write", "1")
    store = await open_store(own_redis.url)
    assert (store.purges.loaded, store.purges.last_position) == (True, BEGINNING)
    await own_redis.command("CONFIG", "SET", "min-replicas-to-write", "0")
    assert await store.put(KEY, ENTRY) == "stored"
    assert await store.get(KEY) == ENTRY


async def test_nothing_is_stored_while_a_lost_log_cannot_be_continued(
    own_redis: RedisServer, open_store: OpenStore
) -> None:
    await own_redis.start()
    store = await open_store(own_redis.url)
    await own_redis.command("DEL", PURGE_LOG_KEY)
    await own_redis.command("CONFIG", "SET", "min-replicas-to-write", "1")
    await store.purges.catch_up()
    assert not store.purges.loaded
    assert await store.put(KEY, ENTRY) == "purged"
    await own_redis.command("CONFIG", "SET", "min-replicas-to-write", "0")

    async def is_known() -> bool:
        await store.purges.catch_up()
        return store.purges.loaded

    await eventually(is_known)
    assert await store.put(KEY, ENTRY) == "stored"


async def test_two_processes_that_find_the_log_lost_at_the_same_time_agree(open_store: OpenStore, client: Any) -> None:
    stores = [await open_store() for _ in range(3)]
    await client.delete(PURGE_LOG_KEY)
    await asyncio.gather(*(store.purges.catch_up() for store in stores))
    for store in stores:
        await store.purges.catch_up()
    assert len({store.purges.last_position for store in stores}) == 1
    assert await stores[0].put(KEY, ENTRY) == "stored"
    assert await stores[1].get(KEY) == ENTRY
