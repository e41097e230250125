"""A purge forgets what it names and nothing else, and tells everybody before it does."""

from typing import Any

import pytest

from router.core.cache.entry_filter import Scope, read_scope, text_name
from router.core.cache.redis_keys import PURGES, claim_of, flight_of, hits_of
from router.net.redis.errors import LinkError
from router.store.admin.purge import Purged, count, purge
from tests.support.entry_factory import entry, key, store

pytestmark = pytest.mark.asyncio(loop_scope="session")

MINE = key(1, system="a" * 16, rag="b" * 16)
PLAIN = key(2)
OTHERS = key(3, tenant="other", model="mistral")


async def there(client: Any) -> set[str]:
    """What Redis holds beside the record of purges."""
    return {name.decode() for name in await client.keys("*")} - {PURGES}


async def fill(client: Any) -> None:
    await store(client, MINE, entry(documents=("handbook", text_name("the text"))))
    await store(client, PLAIN)
    await store(client, OTHERS)


@pytest.mark.parametrize(
    ("scope", "gone"),
    [
        (Scope(key=MINE), {MINE}),
        (Scope(key=MINE, tenant="other"), set()),
        (Scope(tenant="acme"), {MINE, PLAIN}),
        (Scope(model="mistral"), {OTHERS}),
        (Scope(system="a" * 16), {MINE}),
        (Scope(rag="b" * 16), {MINE}),
        (Scope(document="handbook"), {MINE}),
        (Scope(document="the text"), {MINE}),
        (Scope(document=text_name("the text")), {MINE}),
        (Scope(document="faq"), set()),
        (Scope(tenant="other", document="handbook"), set()),
        (Scope(all=True), {MINE, PLAIN, OTHERS}),
        (Scope(tenant="nobody"), set()),
    ],
    ids=lambda value: value.record().decode() if isinstance(value, Scope) else "",
)
async def test_what_is_named_is_forgotten_and_nothing_else(client: Any, scope: Scope, gone: set[str]) -> None:
    await fill(client)
    assert await count(client, scope) == len(gone)
    assert await purge(client, scope) == Purged(entries=len(gone), claims=0)
    assert await there(client) == {MINE, PLAIN, OTHERS} - gone


async def test_the_record_is_there_before_anything_is_deleted(client: Any) -> None:
    await fill(client)
    await client.delete(PURGES)
    await client.set(PURGES, "no stream")
    with pytest.raises(LinkError, match="WRONGTYPE"):
        await purge(client, Scope(all=True))
    assert await there(client) == {MINE, PLAIN, OTHERS}


async def test_the_record_says_what_was_forgotten(client: Any) -> None:
    for scope in (Scope(tenant="acme", model="llama"), Scope(all=True), Scope(document="x" * 100_000)):
        await purge(client, scope)
    records = await client.xrange(PURGES)
    told = [read_scope(dict(fields)[b"scope"]) for _, fields in records]
    assert told == [Scope(tenant="acme", model="llama"), Scope(all=True), Scope(document=text_name("x" * 100_000))]


async def test_a_dry_run_changes_nothing_and_tells_nobody(client: Any) -> None:
    await fill(client)
    before = await client.xrange(PURGES)
    assert await count(client, Scope(all=True)) == 3
    assert await there(client) == {MINE, PLAIN, OTHERS}
    assert await client.xrange(PURGES) == before


async def test_the_claims_of_what_is_in_the_making_go_too(client: Any) -> None:
    for at in (MINE, PLAIN, OTHERS):
        await client.set(claim_of(at), "flight")
        await client.xadd(flight_of(at, "1"), {"a": "b"})
    flights = {flight_of(at, "1") for at in (MINE, PLAIN, OTHERS)}
    assert await purge(client, Scope(key=PLAIN)) == Purged(entries=0, claims=1)
    assert await purge(client, Scope(tenant="acme")) == Purged(entries=0, claims=1)
    assert await purge(client, Scope(document="handbook")) == Purged(entries=0, claims=0)
    assert await there(client) == {claim_of(OTHERS), *flights}, "who reads a flight reads it to its end"


async def test_a_tenant_called_like_a_model_is_not_mixed_up_with_it(client: Any) -> None:
    odd = key(1, tenant="llama", model="acme")
    await store(client, odd)
    await client.set(claim_of(odd), "flight")
    assert await purge(client, Scope(model="llama")) == Purged(entries=0, claims=0)
    assert await purge(client, Scope(tenant="acme")) == Purged(entries=0, claims=0)
    assert await there(client) == {odd, claim_of(odd)}


async def test_an_entry_whose_documents_cannot_be_read_is_forgotten_with_any_document(client: Any) -> None:
    await fill(client)
    await client.hset(MINE, "documents", "not json")
    assert await purge(client, Scope(tenant="other", document="faq")) == Purged(entries=0, claims=0)
    assert await purge(client, Scope(document="faq")) == Purged(entries=1, claims=0)


@pytest.mark.parametrize("command", [("SET", MINE, "x"), ("XADD", MINE, "*", "a", "b"), ("HSET", MINE, "a", b"\xff")])
async def test_a_bad_entry_can_be_forgotten_by_itself(client: Any, command: tuple[Any, ...]) -> None:
    await client.execute_command(*command)
    await store(client, PLAIN)
    assert await purge(client, Scope(key=MINE)) == Purged(entries=1, claims=0)
    assert await there(client) == {PLAIN}


async def test_what_is_forgotten_is_no_longer_among_the_most_popular(client: Any) -> None:
    await fill(client)
    await client.zadd(hits_of("acme"), {MINE: 5, PLAIN: 3})
    await purge(client, Scope(key=MINE))
    assert await client.zrange(hits_of("acme"), 0, -1) == [PLAIN.encode()]


async def test_many_are_forgotten_and_progress_is_told(client: Any) -> None:
    batch = client.pipeline(transaction=False)
    for number in range(5000):
        batch.hset(key(number), mapping={"body": "x"})
        batch.set(f"foreign:{number}", "x")
    await batch.execute()
    seen: list[int] = []
    purged = await purge(client, Scope(tenant="acme"), seen.append)
    assert purged == Purged(entries=5000, claims=0)
    assert seen == sorted(seen)
    assert seen[-1] == 5000
    assert len(seen) >= 10
    assert await client.dbsize() == 5001


async def test_a_redis_that_refuses_to_delete_is_told_and_not_passed_over(client: Any, redis: Any) -> None:
    await fill(client)
    await client.execute_command("ACL", "SETUSER", "default", "-unlink")
    try:
        with pytest.raises(LinkError, match="unlink"):
            await purge(client, Scope(all=True))
    finally:
        await client.execute_command("ACL", "SETUSER", "default", "+unlink")
    assert await purge(client, Scope(all=True)) == Purged(entries=3, claims=0), "done again, it is done"
