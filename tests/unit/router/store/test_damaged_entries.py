"""An entry whose content has changed since it was written is a miss, and is counted."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.core.types import Entry
from tests.support.entry_factory import make_entry
from tests.support.redis_process import RedisServer
from tests.support.router_server import RouterServer
from tests.support.store_fixture import StoreFixture
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = make_entry(body=b'{"choices": ["one", "two"]}')
STREAMED = make_entry(body=b'{"choices": []}', stream=b"=recipe")


class CountingStore(StoreFixture):
    """A store that counts the damaged entries that it has read."""

    def __init__(self, url: str) -> None:
        self.damaged = 0
        super().__init__(url, on_damaged=self._count)

    def _count(self) -> None:
        self.damaged += 1


@pytest_asyncio.fixture(loop_scope="session")
async def store(redis_server: RedisServer, redis: Any) -> AsyncIterator[CountingStore]:
    opened = CountingStore(redis_server.url)
    await opened.start()
    yield opened
    await opened.aclose()


DAMAGE: list[tuple[Entry, str, bytes | None]] = [
    (JSON, "body", b'{"choices": ["one"'),
    (JSON, "body", b""),
    (JSON, "body", b"\x00\xff\x01"),
    (JSON, "body", b'{"choices": ["two", "one"]}'),
    (JSON, "body", b'"another shape"'),
    (JSON, "stream", b"=recipe"),
    (STREAMED, "stream", b"=recip"),
    (STREAMED, "stream", b"~recipe"),
    (STREAMED, "stream", b""),
    (STREAMED, "stream", None),
    (STREAMED, "body", None),
    (JSON, "checksum", None),
    (JSON, "checksum", b""),
    (JSON, "checksum", b"\xff" * 16),
    (JSON, "checksum", b"0" * 16),
    (JSON, "created", b"nonsense"),
]


@pytest.mark.parametrize(("stored", "field", "value"), DAMAGE)
async def test_a_damaged_entry_is_a_miss_and_is_counted(
    store: CountingStore, redis: Any, stored: Entry, field: str, value: bytes | None
) -> None:
    await store.put("k", stored)
    assert (await store.get("k"), store.damaged) == (stored, 0)
    await (redis.hdel("k", field) if value is None else redis.hset("k", field, value))
    assert (await store.get("k"), store.damaged) == (None, 1)


async def test_bytes_that_move_from_one_field_to_another_are_damage(store: CountingStore, redis: Any) -> None:
    await store.put("k", msgspec.structs.replace(STREAMED, body=b"ab", stream=b"c"))
    await redis.hset("k", mapping={"body": "a", "stream": "bc"})
    assert await store.get("k") is None


@pytest.mark.parametrize("version", [None, b"1", b"3", b""])
async def test_an_entry_of_another_format_is_a_miss_but_is_not_damaged(
    store: CountingStore, redis: Any, version: bytes | None
) -> None:
    await store.put("k", STREAMED)
    await (redis.hdel("k", "format") if version is None else redis.hset("k", "format", version))
    assert (await store.get("k"), store.damaged) == (None, 0)
    await store.command("PING")
    assert not await redis.exists("k")  # else the next leader would take it for the response


async def test_a_missing_entry_is_not_damaged(store: CountingStore) -> None:
    assert (await store.get("k"), store.damaged) == (None, 0)


async def test_another_type_at_the_key_counts_as_damaged(store: CountingStore, redis: Any) -> None:
    await redis.set("k", "a string")
    assert (await store.get("k"), store.damaged) == (None, 1)


async def test_a_damaged_entry_is_deleted_when_it_is_found(store: CountingStore, redis: Any) -> None:
    await store.put("k", JSON)
    await redis.hset("k", "body", "{}")
    await store.get("k")
    assert (await store.get("k"), store.damaged) == (None, 1)
    assert not await redis.exists("k")


async def test_an_entry_that_has_replaced_the_damaged_one_is_not_deleted(store: CountingStore, redis: Any) -> None:
    await store.put("k", JSON)
    await redis.hset("k", "body", "{}")
    reading = asyncio.ensure_future(store.get("k"))
    await asyncio.sleep(0)
    newer = msgspec.structs.replace(JSON, created=JSON.created + 1)
    store.put("k", newer)
    assert await reading is None
    assert await store.get("k") == newer


async def test_clients_of_a_damaged_entry_share_one_generation_that_replaces_it(
    router: RouterServer, redis: Any
) -> None:
    first = await router.chat("x")
    key = first.headers["x-cache-key"]
    body = json.loads(await eventually(lambda: redis.hget(key, "body")))
    await redis.hset(key, "body", json.dumps(body)[:-20])
    answers = await asyncio.gather(*(router.chat("x") for _ in range(5)))
    assert [answer.headers["x-cache"] for answer in answers].count("MISS") == 1
    assert all(answer.json()["choices"] for answer in answers)
    assert (await router.chat("x")).headers["x-cache"] == "HIT"
    assert (await router.metrics())["llm_cache_entries_damaged_total"] >= 1
