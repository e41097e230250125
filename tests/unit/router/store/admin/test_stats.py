"""Reading the cache: entries are counted and listed, broken ones too, and nothing is changed."""

import json
import time
from typing import Any

import msgspec
import pytest

from router.core.cache.entry_filter import EntryFilter, text_document_name
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import claim_key, flight_key, hits_key, response_key, response_sizes_key
from router.core.endpoints.recording.stream_encoding import decode_stream
from router.net.redis.connect import open_client
from router.net.redis.errors import RedisBackendError
from router.shared.cache.hit_counter import HitCounter
from router.shared.responses.response_index import COUNT_FIELD, ResponseIndex, remove_command
from router.store.admin import stats as survey
from router.store.admin.listing import StreamDetail, fetch_detail, list_entries
from router.store.admin.stats import KeptCounts, collect_stats, top_entries
from tests.support.entry_factory import entry_key, make_entry, make_streamed_entry, redis_fields_format_1, store_entry
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL = EntryFilter(all=True)


# -- statistics -------------------------------------------------------------------------------------------------------


async def test_entries_are_counted_by_tenant_and_model(client: Any) -> None:
    for number in range(3):
        await store_entry(client, entry_key(number))
    await store_entry(client, entry_key(tenant="other", model="mistral"))
    stats = await collect_stats(client)
    counts = {t: {m: group.entries for m, group in models.items()} for t, models in stats.tenants.items()}
    assert counts == {"acme": {"llama": 3}, "other": {"mistral": 1}}
    assert stats.total.entries == stats.total.measured == 4
    assert stats.total.bytes == sum(
        [
            await client.memory_usage(at, samples=0)
            for at in (*map(entry_key, range(3)), entry_key(tenant="other", model="mistral"))
        ]
    )


async def test_the_memory_of_many_entries_is_estimated_from_a_sample(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "MEASURED", 2)
    for number in range(10):
        await store_entry(client, entry_key(number))
    stats = await collect_stats(client)
    assert stats.total.measured == 2
    assert stats.total.bytes == 10 * await client.memory_usage(entry_key(0), samples=0)


async def test_tokens_are_summed_over_all_entries_including_unmeasured_ones(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "MEASURED", 2)
    for number in range(10):
        await store_entry(client, entry_key(number), make_entry(completion_tokens=7))
    await store_entry(client, entry_key(tenant="other"), make_entry(completion_tokens=30))
    stats = await collect_stats(client)
    size = await client.memory_usage(entry_key(0), samples=0)
    others = await client.memory_usage(entry_key(tenant="other"), samples=0)
    amounts = (stats.tenants["acme"]["llama"], stats.tenants["other"]["llama"], stats.total)
    assert [amount.tokens for amount in amounts] == [70, 30, 100]
    assert amounts[0].bytes_per_token == pytest.approx(size / 7, abs=0.01)
    # Each tenant is weighted by its tokens, although only two of ten entries of one were measured.
    assert amounts[2].bytes_per_token == pytest.approx((10 * size + others) / 100, abs=0.01)


async def test_entries_without_tokens_do_not_count_for_the_bytes_per_token(client: Any) -> None:
    await store_entry(
        client, entry_key(1), make_entry(body=b'{"data": [{"embedding": [1]}]}' + b" " * 5000, completion_tokens=0)
    )
    none = (await collect_stats(client)).total
    assert (none.tokens, none.bytes_per_token) == (0, None)
    await store_entry(client, entry_key(2), make_entry(completion_tokens=10))
    await client.hset(entry_key(3), "completion_tokens", "nonsense")
    await client.set(entry_key(4), "a string")
    stats = (await collect_stats(client)).total
    assert stats.tokens == 10
    assert stats.bytes_per_token == pytest.approx(await client.memory_usage(entry_key(2), samples=0) / 10, abs=0.01)
    assert stats.bytes > 5000


async def test_expired_entries_are_counted_as_stale(client: Any) -> None:
    now = time.time()
    await store_entry(client, entry_key(1), make_entry(created=now - 100, ttl=50.0))
    await store_entry(client, entry_key(2), make_entry(created=now - 100, ttl=500.0))
    stats = await collect_stats(client)
    assert (stats.total.entries, stats.total.stale) == (2, 1)
    assert stats.oldest == stats.newest == pytest.approx(now - 100, abs=0.01)


async def test_generations_in_progress_are_counted_and_are_not_entries(client: Any) -> None:
    await client.set(claim_key(entry_key()), "1")
    for flight_id in ("1", "2"):
        await client.xadd(flight_key(entry_key(), flight_id), {"a": "b"})
    await client.zincrby(hits_key("acme"), 1, entry_key())
    stats = await collect_stats(client)
    assert (stats.total.entries, stats.claims, stats.flights) == (0, 1, 2)


async def test_redis_own_memory_and_evictions_are_reported(client: Any) -> None:
    (server,) = (await collect_stats(client)).redis
    assert server["memory"] > 0
    assert (server["max_memory"], server["policy"], server["evicted"]) == (None, "noeviction", 0)


async def test_an_empty_cache_has_no_oldest_entry(client: Any) -> None:
    stats = await collect_stats(client)
    assert (stats.total.entries, stats.total.bytes, stats.oldest, stats.tenants) == (0, 0, None, {})
    assert (stats.total.tokens, stats.total.bytes_per_token) == (0, None)


async def test_kept_responses_are_counted_by_tenant(client: Any) -> None:
    assert (await collect_stats(client)).responses == {}
    index = ResponseIndex(ttl_ms=60_000, max_count=10, max_bytes=10_000)
    kept = [("b", "resp_1", 700), ("a", "resp_1", 30), ("a", "resp_2", 40), ("c", "resp_1", 1)]
    for tenant, id_, size in kept:
        await client.execute_command(*index.use(tenant, 1000, id_, size, ()))
    await client.execute_command(*remove_command("c", "resp_1"))
    await client.hset(response_key("a", "resp_3"), "digest", "not in the index")
    await client.hset(response_sizes_key("d"), COUNT_FIELD, "many")
    await client.set(response_sizes_key("e"), "of another type")
    stats = await collect_stats(client)
    assert stats.responses == {"a": KeptCounts(count=2, bytes=70), "b": KeptCounts(count=1, bytes=700)}
    assert stats.total.entries == 0


async def test_progress_is_reported_up_to_the_total(client: Any) -> None:
    for number in range(1200):
        await store_entry(client, entry_key(number))
    seen: list[int] = []
    await collect_stats(client, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1200
    assert len(seen) > 1


# -- listing ----------------------------------------------------------------------------------------------------------


async def test_a_listing_describes_each_entry(client: Any) -> None:
    entry = make_entry(documents=("handbook", "faq"), completion_tokens=7)
    at = await store_entry(client, entry_key(rag="b" * 16), entry, expires=7200)
    (listed,) = (await list_entries(client, ALL, 10)).entries
    listed_ = msgspec.to_builtins(listed)
    assert listed_ == {
        "key": at,
        "parts": {"tenant": "acme", "model": "llama", "system": "0" * 16, "rag": "b" * 16, "query": "0" * 32},
        "engine": "llama-chat", "task": "chat", "created": entry.created, "age": 0, "ttl": listed_["ttl"],
        "gone_in": listed_["gone_in"], "stale": False, "prompt_tokens": 3, "completion_tokens": 7, "generation_ms": 12,
        "bytes": listed_["bytes"], "documents": ["handbook", "faq"], "preview": None, "hits": None,
        "saved_seconds": 0.0,
    }  # fmt: skip
    assert 3590 < listed_["ttl"] <= 3600
    assert 7190 < listed_["gone_in"] <= 7200
    assert listed_["bytes"] > 100


async def test_pages_follow_in_the_order_of_the_keys_without_a_gap_or_a_repeat(client: Any) -> None:
    expected = [await store_entry(client, entry_key(number)) for number in range(57)]
    keys: list[str] = []
    cursor = None
    pages = 0
    while pages == 0 or cursor is not None:
        one = await list_entries(client, ALL, 10, cursor)
        keys += [listed.key for listed in one.entries]
        cursor = one.cursor
        pages += 1
        await store_entry(client, entry_key(1000 + pages, tenant="aaa"))  # a new entry that sorts before the cursor
    assert keys == expected
    assert pages == 6


async def test_a_listing_is_filtered_by_the_parts_of_the_key_and_by_a_document(client: Any) -> None:
    plain = await store_entry(client, entry_key(1))
    other = await store_entry(client, entry_key(2, tenant="other", model="mistral"))
    prompted = await store_entry(client, entry_key(3, system="a" * 16))
    documented = await store_entry(
        client, entry_key(4, rag="b" * 16), make_entry(documents=("handbook", text_document_name("some text")))
    )

    async def found(**parts: str) -> list[str]:
        return [listed.key for listed in (await list_entries(client, EntryFilter(**parts), 10)).entries]  # type: ignore[arg-type]

    assert await found(tenant="acme") == sorted([plain, prompted, documented])
    assert await found(model="mistral") == [other]
    assert await found(system="a" * 16) == [prompted]
    assert await found(rag="b" * 16) == [documented]
    assert await found(document="handbook") == await found(document="some text") == [documented]
    assert await found(document="faq") == await found(tenant="other", document="handbook") == []


async def test_an_entry_with_a_text_in_a_number_field_is_listed_nevertheless(client: Any) -> None:
    await store_entry(client, entry_key(1))
    for number, value in enumerate([b"nan", b"\xff", b"", b"1e999", b"-5"], 2):
        await client.hset(entry_key(number), mapping={"created": value, "ttl": value, "documents": value})
    await client.set(entry_key(9), "no hash at all")
    entries = (await list_entries(client, ALL, 10)).entries
    assert [listed.key for listed in entries] == [entry_key(n) for n in (1, 2, 3, 4, 5, 6, 9)]
    assert {listed.created for listed in entries[1:]} == {None}


# -- one entry --------------------------------------------------------------------------------------------------------


async def test_an_entry_is_shown_with_all_its_fields(client: Any) -> None:
    body = json.dumps({"choices": [{"message": {"content": "für alle"}}]}, ensure_ascii=False)
    at = await store_entry(client, entry_key(), make_entry(body=body.encode(), question="a" * 16, params="b" * 16))
    details = await fetch_detail(client, at)
    assert details is not None
    assert (details.problem, details.type, details.entry.key) == (None, "hash", at)
    assert details.fields["body"] == body
    assert details.fields["question"] == "a" * 16
    assert details.fields["digest"] == "d" * 64
    assert (details.text, details.stream, details.hits) == ("für alle", None, None)


async def test_the_hits_of_an_entry_are_shown_as_far_as_they_are_counted(client: Any) -> None:
    at = await store_entry(client, entry_key(), make_entry())
    await client.zincrby(hits_key(KeyParts.parse(at).tenant), 3, at)
    details = await fetch_detail(client, at)
    assert details is not None
    assert details.hits == 3


@pytest.mark.parametrize("lossless", [True, False])
async def test_an_entry_from_a_stream_is_shown_with_its_events(client: Any, lossless: bool) -> None:
    entry = make_streamed_entry("The sea is wide.", lossless=lossless)
    assert entry.stream is not None
    events = decode_stream(entry.stream, entry.body, include_usage=True, end=b"")
    details = await fetch_detail(client, await store_entry(client, entry_key(), entry))
    assert details is not None
    assert details.stream == StreamDetail(bytes=len(entry.stream), events=len(events), lossless=lossless)
    assert (details.text, details.problem) == ("The sea is wide.", None)
    assert details.fields["stream"] == entry.stream.decode("ascii")


async def test_a_stream_that_cannot_be_read_gives_no_events(client: Any) -> None:
    details = await fetch_detail(client, await store_entry(client, entry_key(), make_entry(stream=b"=nonsense")))
    assert details is not None
    assert details.stream == StreamDetail(bytes=9, events=None, lossless=True)


async def test_an_entry_of_another_format_is_shown_with_its_format(client: Any) -> None:
    at = await store_entry(client, entry_key(1), make_streamed_entry())
    for number, format_ in ((2, "1"), (3, "3"), (4, "")):
        await client.hset(entry_key(number), mapping=await client.hgetall(at))
        await client.hset(entry_key(number), "format", format_)
    await client.hset(entry_key(5), mapping=redis_fields_format_1(make_streamed_entry()))
    details = [await fetch_detail(client, entry_key(number)) for number in (2, 3, 4, 5)]
    problems = [one.problem for one in details if one is not None]
    assert problems[0] == problems[3] == "written in format 1; this router reads format 2"
    assert problems[1] == "written in format 3; this router reads format 2"
    assert (problems[2] or "").startswith("not a valid entry")
    assert details[3] is not None
    assert (details[3].text, details[3].stream, details[3].fields["frames"]) == (None, None, "data: {}\n\n")


async def test_a_missing_entry_is_not_shown(client: Any) -> None:
    assert await fetch_detail(client, entry_key()) is None


@pytest.mark.parametrize(
    "command",
    [
        ("SET", entry_key(), "a string"), ("LPUSH", entry_key(), "a"), ("XADD", entry_key(), "*", "a", "b"),
        ("HSET", entry_key(), "body", b"\xff\xfe"), ("HSET", entry_key(), "digest", "only"), ("HSET", entry_key(),
    b"\xff", "field"), ],
    ids=lambda command: command[0] + repr(command[2]),
)  # fmt: skip
async def test_a_damaged_entry_is_shown_unchanged(client: Any, command: tuple[Any, ...]) -> None:
    await client.execute_command(*command)
    details = await fetch_detail(client, entry_key())
    assert details is not None
    assert details.problem is not None
    assert (details.type == "hash") == (command[0] == "HSET")
    msgspec.json.encode(details)


async def test_bytes_that_are_not_text_are_shown_as_base64(client: Any) -> None:
    await store_entry(client, entry_key(), make_entry(body=b"\xff\x00"))
    details = await fetch_detail(client, entry_key())
    assert details is not None
    assert details.fields["body"] == "base64:/wA="


# -- popularity -------------------------------------------------------------------------------------------------------


async def test_the_most_hit_entries_come_first_with_the_tokens_that_they_saved(client: Any) -> None:
    popularity = HitCounter()
    for number, hits in ((1, 2), (2, 5), (3, 1)):
        for _ in range(hits):
            popularity.record_hit(entry_key(number))
    for _ in range(3):
        popularity.record_hit(entry_key(tenant="other"))
    for command in popularity.take_commands():
        await client.execute_command(*command)
    await store_entry(client, entry_key(2), make_entry(completion_tokens=7))
    assert [(hit.key, hit.hits, hit.saved) for hit in await top_entries(client, 3)] == [
        (entry_key(2), 5, 35), (entry_key(tenant="other"), 3, None), (entry_key(1), 2, None),
    ]  # fmt: skip
    assert [hit.key for hit in await top_entries(client, 10, "other")] == [entry_key(tenant="other")]
    assert await top_entries(client, 10, "nobody") == []


async def test_a_counted_key_that_is_not_an_entrys_is_ignored(client: Any) -> None:
    await client.zadd(hits_key("acme"), {"nonsense": 9, b"\xff": 8, entry_key(): 1})
    assert [hit.key for hit in await top_entries(client, 10)] == [entry_key()]


# -- Redis is down ----------------------------------------------------------------------------------------------------


async def test_without_redis_every_query_reports_that(own_redis: RedisServer) -> None:
    client = open_client(own_redis.url, timeout=1)
    for question in (
        collect_stats(client),
        list_entries(client, ALL, 10),
        fetch_detail(client, entry_key()),
        top_entries(client, 3),
    ):
        with pytest.raises(RedisBackendError):
            await question
    await client.aclose()


async def test_a_redis_that_hangs_is_not_waited_for(own_redis: RedisServer) -> None:
    await own_redis.start()
    client = open_client(own_redis.url, timeout=1)
    await store_entry(client, entry_key())
    own_redis.freeze()
    with pytest.raises(RedisBackendError):
        await collect_stats(client)
    own_redis.thaw()
    await client.aclose()
