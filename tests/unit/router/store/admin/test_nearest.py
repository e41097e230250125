"""The nearest entry of a tenant is the one with the fewest differing key parts."""

import time
from typing import Any

import pytest

from router.core.cache.fingerprint import Fingerprint
from router.core.cache.key_parts import KeyParts
from router.store.admin.nearest import find_nearest
from tests.support.entry_factory import entry_key, make_entry, store_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")

SYSTEM, RAG, QUESTION, PARAMS = "a" * 16, "b" * 16, "1" * 16, "2" * 16
WANTED = Fingerprint(KeyParts("acme", "llama", SYSTEM, RAG, f"{0:032x}"), QUESTION, PARAMS)
KEY = entry_key(0, system=SYSTEM, rag=RAG)


async def put(client: Any, at: str, question: str = QUESTION, params: str = PARAMS, **fields: Any) -> str:
    return await store_entry(client, at, make_entry(question=question, params=params, **fields))


async def test_the_entry_with_the_fewest_different_parts_is_nearest(client: Any) -> None:
    await put(client, entry_key(1, system="c" * 16, rag=RAG), question="9" * 16)
    best = await put(client, entry_key(2, system=SYSTEM, rag=RAG), params="9" * 16)
    await put(client, entry_key(3, model="mistral"))
    near = await find_nearest(client, WANTED, KEY, 100)
    assert (near.key, near.differs, near.looked_at, near.everything) == (best, ["params"], 3, True)


async def test_of_several_the_newest_is_nearest(client: Any) -> None:
    now = time.time()
    await put(client, entry_key(2, system="c" * 16, rag=RAG), created=now - 20)
    newer = await put(client, entry_key(3, system="d" * 16, rag=RAG), created=now - 10)
    await put(client, entry_key(1), created=now)
    assert (await find_nearest(client, WANTED, KEY, 100)).key == newer


async def test_another_tenants_entries_and_the_entry_itself_are_ignored(client: Any) -> None:
    await put(client, KEY)
    await put(client, entry_key(0, tenant="other", system=SYSTEM, rag=RAG))
    near = await find_nearest(client, WANTED, KEY, 100)
    assert (near.key, near.differs, near.looked_at) == (None, [], 0)


async def test_an_entry_of_another_revision_is_one_of_another_model(client: Any) -> None:
    await put(client, entry_key(5, system=SYSTEM, rag=RAG))
    assert (await find_nearest(client, WANTED, KEY, 100)).differs == ["model"]


async def test_entries_without_part_hashes_are_compared_by_their_keys(client: Any) -> None:
    await store_entry(client, entry_key(5, system=SYSTEM, rag=RAG))
    await client.set(entry_key(6), "no hash")
    await client.hset(entry_key(7), mapping={"question": b"\xff", "created": b"\xff"})
    near = await find_nearest(client, WANTED, KEY, 100)
    assert (near.key, near.differs, near.looked_at) == (entry_key(5, system=SYSTEM, rag=RAG), ["query"], 3)


async def test_no_more_entries_are_compared_than_the_limit(client: Any) -> None:
    for number in range(1, 1700):
        await client.hset(entry_key(number), "question", QUESTION)
    near = await find_nearest(client, WANTED, KEY, 600)
    assert 600 <= near.looked_at < 1700
    assert not near.everything
    assert near.key is not None
