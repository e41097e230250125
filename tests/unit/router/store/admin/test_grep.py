"""A search finds entries by the text of their answers, and its purge is one of each key."""

import json
from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import claim_key, hits_key
from router.core.endpoints.recording.answer_text import MAX_PREVIEW
from router.errors import ApiError
from router.store.admin.answers import MAX_SEARCHED
from router.store.admin.entry_order import Order
from router.store.admin.grep import MAX_PURGED, Bounds, Found, GrepResult, describe_found, purge_found, search_answers
from router.store.admin.listing import fetch_detail, list_entries
from router.store.admin.purge_record import ReplicaAcks
from router.store.admin.scan import BATCH_SIZE
from tests.support.entry_factory import entry_key, make_entry, make_streamed_entry, store_entry
from tests.support.purge_log import logged_scopes

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVERYTHING = EntryFilter(all=True)


async def store_text(client: Any, number: int, text: str, **fields: Any) -> str:
    return await store_entry(client, entry_key(number), make_streamed_entry(text, **fields))


async def search(client: Any, text: str, scope: EntryFilter = EVERYTHING, **bounds: int) -> Found:
    return await search_answers(client, scope, text, Bounds(**bounds))


async def grep(client: Any, text: str, order: Order = "key", limit: int = 100) -> GrepResult:
    return await describe_found(client, await search(client, text), order, limit)


# -- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lossless", [True, False])
async def test_an_answer_is_found_by_a_part_of_its_text_in_any_case(client: Any, lossless: bool) -> None:
    wanted = await store_text(client, 1, "The Straße leads\nto the sea.", lossless=lossless)
    await store_text(client, 2, "It leads nowhere.", lossless=lossless)
    result = await grep(client, " STRASSE  leads to ")
    assert [entry.key for entry in result.entries] == [wanted]
    assert (result.matches, result.looked_at, result.skipped, result.everything) == (1, 2, 0, True)
    assert result.bytes > 0
    assert (await grep(client, "mountain")).matches == 0


async def test_vectors_are_not_found_by_the_words_that_describe_them(client: Any) -> None:
    vectors = json.dumps({"data": [{"embedding": [0.5, 0.25]}]}).encode()
    await store_entry(client, entry_key(1), make_entry(body=vectors))
    assert (await grep(client, "vector")).matches == 0


async def test_only_entries_of_the_filter_are_searched(client: Any) -> None:
    await store_text(client, 1, "The sea.")
    other = await store_entry(client, entry_key(2, tenant="other", model="mistral"), make_streamed_entry("The sea."))
    for scope in (EntryFilter(tenant="other"), EntryFilter(model="mistral")):
        found = await search(client, "sea", scope)
        assert (found.keys, found.looked_at) == ([other], 1)


async def test_a_search_ends_at_its_bounds_and_says_so(client: Any) -> None:
    for number in range(3):
        await store_text(client, number, "The sea.")
    found = await search(client, "sea", entries=2)
    assert (len(found.keys), found.looked_at, found.everything) == (2, 2, False)
    assert (await search(client, "sea", entries=3)).everything
    found = await search(client, "sea", bytes=1)
    assert (found.looked_at, found.everything) == (1, False)


async def test_what_has_no_answer_is_skipped_and_counted(client: Any) -> None:
    await client.set(entry_key(1), "no hash")
    await client.hset(entry_key(2), "digest", "d")
    await client.hset(entry_key(3), "body", json.dumps({"text": "sea " * (MAX_SEARCHED // 4)}))
    wanted = await store_text(client, 4, "The sea.")
    found = await search(client, "sea")
    assert (found.keys, found.looked_at, found.skipped) == ([wanted], 4, 3)


@pytest.mark.parametrize("text", ["", " \n"])
async def test_a_search_for_nothing_is_refused(client: Any, text: str) -> None:
    with pytest.raises(ApiError, match="white space"):
        await search(client, text)


async def test_progress_is_reported(client: Any) -> None:
    reported: list[int] = []
    await store_text(client, 1, "The sea.")
    await search_answers(client, EVERYTHING, "sea", Bounds(), reported.append)
    assert reported[-1] == 1


# -- its purge --------------------------------------------------------------------------------------------------------


async def test_the_purge_of_a_search_is_one_of_each_key_with_its_generation(client: Any) -> None:
    bad, worse = await store_text(client, 1, "A bad answer."), await store_text(client, 2, "Bad, too.")
    good = await store_text(client, 3, "A good answer.")
    await client.set(claim_key(bad), "owner")
    await client.zadd(hits_key("acme"), {bad: 3, good: 2})
    reported: list[int] = []
    result = await purge_found(client, await search(client, "bad"), reported.append)
    assert (result.entries, result.claims, result.recorded, result.replicas) == (2, 1, True, ReplicaAcks(0, 0))
    assert reported == [0, 2]
    assert await client.exists(bad, worse, claim_key(bad)) == 0
    assert await client.exists(good) == 1
    assert {scope.key for scope in await logged_scopes(client)} == {bad, worse}
    assert await client.zrange(hits_key("acme"), 0, -1) == [good.encode()]


async def test_more_matches_than_one_search_may_purge_are_not_purged(client: Any) -> None:
    kept = await store_text(client, 1, "The sea.")
    with pytest.raises(ApiError, match="1,001 entries match") as raised:
        await purge_found(client, Found([kept] * (MAX_PURGED + 1), 0, 0, 0, everything=True))
    assert raised.value.code == "too_many_matches"
    assert await client.exists(kept)
    assert await logged_scopes(client) == []


async def test_the_purge_of_more_matches_than_a_batch_has_a_record_of_each(client: Any) -> None:
    keys = [entry_key(number) for number in range(BATCH_SIZE + 1)]
    batch = client.pipeline(transaction=False)
    for key in keys:
        batch.hset(key, mapping={"body": "x"})
    await batch.execute()
    reported: list[int] = []
    result = await purge_found(client, Found(keys, 0, 0, 0, everything=True), reported.append)
    assert (result.entries, reported) == (BATCH_SIZE + 1, [0, BATCH_SIZE, BATCH_SIZE + 1])
    assert {scope.key for scope in await logged_scopes(client)} == set(keys)
    assert await client.keys("rh:1:acme:*") == []


async def test_a_purge_of_no_match_changes_nothing(client: Any) -> None:
    result = await purge_found(client, await search(client, "sea"))
    assert (result.entries, result.claims, result.recorded) == (0, 0, True)


# -- the first words --------------------------------------------------------------------------------------------------


async def test_entries_are_listed_with_the_first_words_of_their_answers(client: Any) -> None:
    await store_text(client, 1, "The sea\n is wide.")
    await store_text(client, 2, "The sea is lossy.", lossless=False)
    await store_text(client, 3, "word " * 100)
    await store_entry(client, entry_key(4), make_entry(body=b'{"data":[{"embedding":[1,2,3]}]}'))
    await client.set(entry_key(5), "no hash")
    previews = [entry.preview for entry in (await list_entries(client, EVERYTHING, 10)).entries]
    assert previews[:2] == ["The sea is wide.", "The sea is lossy."]
    assert previews[2] == ("word " * 100)[: MAX_PREVIEW - 1] + "…"
    assert previews[3:] == ["1 vector of 3 dimensions", None]


async def test_of_a_large_answer_only_the_beginning_is_read(client: Any) -> None:
    await store_text(client, 1, "größer " * 100_000)
    vectors = json.dumps({"object": "list", "data": [{"embedding": [0.123456] * 100_000}]}).encode()
    await store_entry(client, entry_key(2), make_entry(body=vectors))
    entries = (await list_entries(client, EVERYTHING, 10)).entries
    assert [entry.preview for entry in entries] == [("größer " * 20)[: MAX_PREVIEW - 1] + "…", "vectors"]


# -- the order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [("key", [1, 2, 3, 4]), ("age", [4, 3, 2, 1]), ("hits", [2, 3, 1, 4]), ("tokens", [1, 4, 2, 3]),
     ("saved", [3, 2, 1, 4])],
)  # fmt: skip
async def test_a_listing_has_the_order_that_is_asked_for_over_its_pages(
    client: Any, order: Order, expected: list[int]
) -> None:
    rows = {1: (90, 10, 0), 2: (5, 100, 9), 3: (5, 9000, 8), 4: (60, 10, 0)}  # tokens, milliseconds, hits
    for number, (tokens, milliseconds, hits) in rows.items():
        entry = make_entry(completion_tokens=tokens, generation_ms=milliseconds, created=1_700_000_000.0 + number)
        await store_entry(client, entry_key(number), entry)
        if hits:
            await client.zadd(hits_key("acme"), {entry_key(number): hits})
    listed: list[str] = []
    cursor = None
    while len(listed) < 4:
        page = await list_entries(client, EVERYTHING, 1, cursor, order)
        listed += [entry.key for entry in page.entries]
        cursor = page.cursor
    assert listed == [entry_key(number) for number in expected]
    assert cursor is None
    (third,) = [entry for entry in (await list_entries(client, EVERYTHING, 4)).entries if entry.key == entry_key(3)]
    assert (third.hits, third.saved_seconds) == (8, 72.0)
    detail = await fetch_detail(client, entry_key(1))
    assert detail is not None
    assert (detail.hits, detail.entry.saved_seconds) == (None, 0.0)


@pytest.mark.parametrize("cursor", ["", "x", f"nan/{entry_key()}", f"x/{entry_key()}", "1.0/rh:1:purge:log"])
async def test_a_cursor_of_another_order_is_refused(client: Any, cursor: str) -> None:
    with pytest.raises(ApiError, match="cursor"):
        await list_entries(client, EVERYTHING, 1, cursor, "age")


async def test_the_matches_have_the_order_that_is_asked_for(client: Any) -> None:
    for number, tokens in ((1, 5), (2, 50), (3, 20)):
        await store_entry(client, entry_key(number), make_entry(body=b'{"text":"The sea."}', completion_tokens=tokens))
    result = await grep(client, "sea", "tokens", limit=2)
    assert [entry.key for entry in result.entries] == [entry_key(2), entry_key(3)]
    assert result.matches == 3
