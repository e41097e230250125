"""The promises of EntryStore that depend on Redis, with every deployment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec
import pytest
import pytest_asyncio

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.core.types import Entry
from tests.support.redis_deployments import Deployment
from tests.support.store_fixture import StoreFixture
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OpenStore = Callable[[], Awaitable[StoreFixture]]

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
async def open_store(deployment: Deployment) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as stack:

        async def make() -> StoreFixture:
            store = StoreFixture(deployment.url)
            await store.start()
            stack.push_async_callback(store.aclose)
            return store

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: OpenStore) -> StoreFixture:
    return await open_store()


def keys_of(request: pytest.FixtureRequest, count: int) -> list[str]:
    """Keys that no other test uses, in several slots."""
    return [f"rh:1:{request.node.originalname}:{number}" for number in range(count)]


async def test_an_entry_is_found_by_this_process_and_by_others(
    store: StoreFixture, open_store: OpenStore, request: pytest.FixtureRequest
) -> None:
    other = await open_store()
    entries = {key: msgspec.structs.replace(ENTRY, prompt_tokens=n) for n, key in enumerate(keys_of(request, 200))}
    written = [store.put(key, entry) for key, entry in entries.items()]
    assert await asyncio.gather(*(store.get(key) for key in entries)) == list(entries.values())
    assert set(await asyncio.gather(*written)) == {"stored"}
    assert await asyncio.gather(*(other.get(key) for key in entries)) == list(entries.values())


async def test_every_entry_expires(store: StoreFixture, request: pytest.FixtureRequest) -> None:
    for key in keys_of(request, 10):
        await store.put(key, msgspec.structs.replace(ENTRY, ttl=0.0001, stale=0.0))
        await eventually(partial(_is_missing, store, key))


async def test_an_entry_replaces_any_value(store: StoreFixture, request: pytest.FixtureRequest) -> None:
    json_only = msgspec.structs.replace(ENTRY, stream=None)
    for key in keys_of(request, 10):
        await store.put(key, ENTRY)
        await store.put(key, json_only)
        assert await store.get(key) == json_only
        await store.command("SET", key, "a string")
        assert await store.get(key) is None
        assert await store.put(key, ENTRY) == "stored"
        assert await store.get(key) == ENTRY


async def test_an_entry_purged_during_its_generation_is_not_stored(store: StoreFixture, open_store: OpenStore) -> None:
    await store.purges.load()
    since = store.purges.last_position
    other = await open_store()
    await other.command("XADD", PURGE_LOG_KEY, "*", "scope", msgspec.json.encode(EntryFilter(tenant="acme")))
    # Without a notification, the store detects the purge when it reads the log after its write.
    keys = [f"rh:1:acme:llama:0:0:{number}" for number in range(10)]
    assert {await store.put(key, ENTRY, since) for key in keys} == {"purged"}
    await eventually(lambda: _is_missing(store, *keys))
    assert await store.put(keys[0], ENTRY, store.purges.last_position) == "stored"


async def _is_missing(store: StoreFixture, *keys: str) -> bool:
    return [await store.get(key) for key in keys] == [None] * len(keys)
