"""A purge deletes what its filter names and nothing else, and publishes its record first."""

from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter, parse_purge_filter, text_document_name
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import PURGE_LOG_KEY, claim_key, flight_key, hits_key, prompt_key, prompts_key
from router.net.redis.errors import RedisBackendError
from router.shared.prompts.recent_prompts import prompt_id
from router.store.admin.purge import PurgeResult, count_entries, purge
from tests.support.entry_factory import entry_key, make_entry, store_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")

MATCHING = entry_key(1, system="a" * 16, rag="b" * 16)
PLAIN = entry_key(2)
OTHERS = entry_key(3, tenant="other", model="mistral")


async def there(client: Any) -> set[str]:
    """The keys in Redis except the purge log."""
    return {name.decode() for name in await client.keys("*")} - {PURGE_LOG_KEY}


async def fill(client: Any) -> None:
    await store_entry(client, MATCHING, make_entry(documents=("handbook", text_document_name("the text"))))
    await store_entry(client, PLAIN)
    await store_entry(client, OTHERS)


@pytest.mark.parametrize(
    ("scope", "gone"),
    [
        (EntryFilter(key=MATCHING), {MATCHING}),
        (EntryFilter(key=MATCHING, tenant="other"), set()),
        (EntryFilter(tenant="acme"), {MATCHING, PLAIN}),
        (EntryFilter(model="mistral"), {OTHERS}),
        (EntryFilter(system="a" * 16), {MATCHING}),
        (EntryFilter(rag="b" * 16), {MATCHING}),
        (EntryFilter(document="handbook"), {MATCHING}),
        (EntryFilter(document="the text"), {MATCHING}),
        (EntryFilter(document=text_document_name("the text")), {MATCHING}),
        (EntryFilter(document="faq"), set()),
        (EntryFilter(tenant="other", document="handbook"), set()),
        (EntryFilter(all=True), {MATCHING, PLAIN, OTHERS}),
        (EntryFilter(tenant="nobody"), set()),
    ],
    ids=lambda value: value.to_json().decode() if isinstance(value, EntryFilter) else "",
)
async def test_only_matching_entries_are_deleted(client: Any, scope: EntryFilter, gone: set[str]) -> None:
    await fill(client)
    assert await count_entries(client, scope) == len(gone)
    assert await purge(client, scope) == PurgeResult(entries=len(gone), claims=0)
    assert await there(client) == {MATCHING, PLAIN, OTHERS} - gone


@pytest.mark.parametrize(
    ("scope", "gone"),
    [
        (EntryFilter(key=MATCHING), {MATCHING}),
        (EntryFilter(key=MATCHING, tenant="other"), set()),
        (EntryFilter(model="mistral"), {OTHERS}),
        (EntryFilter(model="mistral", tenant="nobody"), set()),
        (EntryFilter(tenant="acme"), {MATCHING}),
        (EntryFilter(document="handbook"), {MATCHING}),
        (EntryFilter(document="d2"), set()),
        (EntryFilter(all=True), {MATCHING, OTHERS}),
    ],
    ids=lambda value: value.to_json().decode() if isinstance(value, EntryFilter) else "",
)
async def test_recent_requests_that_the_filter_matches_are_deleted(
    client: Any, scope: EntryFilter, gone: set[str]
) -> None:
    documents = {MATCHING: b'["handbook"]', OTHERS: b"[]"}
    models = {key: KeyParts.parse(key).model for key in documents}
    items = {key: prompt_key(models[key], prompt_id(key)) for key in documents}
    for key, item in items.items():
        await client.hset(item, mapping={"key": key, "documents": documents[key], "body": b"{}"})
        await client.lpush(prompts_key(models[key]), prompt_id(key))
    await purge(client, scope)
    left = {item for key, item in items.items() if key not in gone}
    assert await there(client) == left | set(map(prompts_key, models.values()))


async def test_recent_requests_of_a_former_version_do_not_outlive_a_purge(client: Any) -> None:
    await client.lpush(prompts_key("llama"), b'{"path":"/v1/completions","body":{"prompt":"A secret?"}}')
    await purge(client, EntryFilter(tenant="nobody"))
    assert await there(client) == set()


async def test_the_record_exists_before_anything_is_deleted(client: Any) -> None:
    await fill(client)
    await client.delete(PURGE_LOG_KEY)
    await client.set(PURGE_LOG_KEY, "no stream")
    with pytest.raises(RedisBackendError, match="WRONGTYPE"):
        await purge(client, EntryFilter(all=True))
    assert await there(client) == {MATCHING, PLAIN, OTHERS}


async def test_the_record_contains_the_filter(client: Any) -> None:
    for scope in (
        EntryFilter(tenant="acme", model="llama"),
        EntryFilter(all=True),
        EntryFilter(document="x" * 100_000),
    ):
        await purge(client, scope)
    records = await client.xrange(PURGE_LOG_KEY)
    decoded = [parse_purge_filter(dict(fields)[b"scope"]) for _, fields in records]
    assert decoded == [
        EntryFilter(tenant="acme", model="llama"),
        EntryFilter(all=True),
        EntryFilter(document=text_document_name("x" * 100_000)),
    ]


async def test_a_dry_run_changes_nothing_and_notifies_no_router(client: Any) -> None:
    await fill(client)
    before = await client.xrange(PURGE_LOG_KEY)
    assert await count_entries(client, EntryFilter(all=True)) == 3
    assert await there(client) == {MATCHING, PLAIN, OTHERS}
    assert await client.xrange(PURGE_LOG_KEY) == before


async def test_the_claims_of_generations_in_progress_are_deleted_too(client: Any) -> None:
    for at in (MATCHING, PLAIN, OTHERS):
        await client.set(claim_key(at), "flight")
        await client.xadd(flight_key(at, "1"), {"a": "b"})
    flight_keys = {flight_key(at, "1") for at in (MATCHING, PLAIN, OTHERS)}
    assert await purge(client, EntryFilter(key=PLAIN)) == PurgeResult(entries=0, claims=1)
    assert await purge(client, EntryFilter(tenant="acme")) == PurgeResult(entries=0, claims=1)
    assert await purge(client, EntryFilter(document="handbook")) == PurgeResult(entries=0, claims=0)
    assert await there(client) == {claim_key(OTHERS), *flight_keys}, "followers of a flight read it to its end"


async def test_a_tenant_named_like_a_model_is_not_confused_with_it(client: Any) -> None:
    odd = entry_key(1, tenant="llama", model="acme")
    await store_entry(client, odd)
    await client.set(claim_key(odd), "flight")
    assert await purge(client, EntryFilter(model="llama")) == PurgeResult(entries=0, claims=0)
    assert await purge(client, EntryFilter(tenant="acme")) == PurgeResult(entries=0, claims=0)
    assert await there(client) == {odd, claim_key(odd)}


async def test_an_entry_whose_documents_cannot_be_read_is_purged_with_any_document(client: Any) -> None:
    await fill(client)
    await client.hset(MATCHING, "documents", "not json")
    assert await purge(client, EntryFilter(tenant="other", document="faq")) == PurgeResult(entries=0, claims=0)
    assert await purge(client, EntryFilter(document="faq")) == PurgeResult(entries=1, claims=0)


@pytest.mark.parametrize(
    "command", [("SET", MATCHING, "x"), ("XADD", MATCHING, "*", "a", "b"), ("HSET", MATCHING, "a", b"\xff")]
)
async def test_a_damaged_entry_can_be_purged_by_its_key(client: Any, command: tuple[Any, ...]) -> None:
    await client.execute_command(*command)
    await store_entry(client, PLAIN)
    assert await purge(client, EntryFilter(key=MATCHING)) == PurgeResult(entries=1, claims=0)
    assert await there(client) == {PLAIN}


async def test_a_purged_entry_is_no_longer_among_the_most_popular(client: Any) -> None:
    await fill(client)
    await client.zadd(hits_key("acme"), {MATCHING: 5, PLAIN: 3})
    await purge(client, EntryFilter(key=MATCHING))
    assert await client.zrange(hits_key("acme"), 0, -1) == [PLAIN.encode()]


async def test_many_entries_are_purged_and_progress_is_reported(client: Any) -> None:
    batch = client.pipeline(transaction=False)
    for number in range(5000):
        batch.hset(entry_key(number), mapping={"body": "x"})
        batch.set(f"foreign:{number}", "x")
    await batch.execute()
    seen: list[int] = []
    purged = await purge(client, EntryFilter(tenant="acme"), seen.append)
    assert purged == PurgeResult(entries=5000, claims=0)
    assert seen == sorted(seen)
    assert seen[-1] == 5000
    assert len(seen) >= 10
    assert await client.dbsize() == 5001


async def test_a_redis_that_refuses_to_delete_is_reported(client: Any, redis: Any) -> None:
    await fill(client)
    await client.execute_command("ACL", "SETUSER", "default", "-unlink")
    try:
        with pytest.raises(RedisBackendError, match="unlink"):
            await purge(client, EntryFilter(all=True))
    finally:
        await client.execute_command("ACL", "SETUSER", "default", "+unlink")
    assert await purge(client, EntryFilter(all=True)) == PurgeResult(entries=3, claims=0), "done again, it is done"
