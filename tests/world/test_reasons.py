"""The miss reason in X-Cache-Reason and in the log."""

import asyncio
import logging
from functools import partial
from typing import Any

import httpx
import pytest

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import PURGE_LOG_KEY
from tests.support.router_server import LLAMA_ALIAS, router_config
from tests.support.time_travel import DAY, backdate_entry
from tests.support.waiting import eventually
from tests.world.defaults import default_router
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

SYSTEM, PROMPT = "Be brief.", "The sea?"
ONLY_IF_CACHED = {"cache-control": "only-if-cached"}
"""With it, a request changes nothing."""
DOCUMENTS = [{"doc_id": "a", "text": "The sea is salt."}]


async def ask(
    router: WorldRouter, prompt: str = PROMPT, *, system: str = SYSTEM, headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:  # fmt: skip
    """Sends a request with a system prompt and a document."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    body = {"model": "llama", "messages": messages, "documents": DOCUMENTS, **fields}
    return await router.http.post("/v1/chat/completions", json=body, headers=headers)


async def reason(router: WorldRouter, *args: Any, **fields: Any) -> str | None:
    answer = await ask(router, *args, **fields)
    assert answer.headers["x-cache"] == "MISS"
    assert answer.headers["cache-status"].startswith("roundhouse; fwd=")
    word: str | None = answer.headers.get("x-cache-reason")
    return word


async def start_known(world: World) -> WorldRouter:
    """A router that has answered the question once."""
    router, _ = await default_router(world)
    assert await reason(router) == "new"
    return router


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_first_request_is_new(world: World, stream: bool) -> None:
    router, _ = await default_router(world)
    assert await reason(router, stream=stream) == "new"


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        ("query", {"prompt": "The land?"}),
        ("params", {"temperature": 0.5}),
        ("params", {"a_field_nobody_knows": 1}),
        ("system", {"system": "Be long."}),
        ("system", {"system": SYSTEM + " "}),
        ("rag", {"documents": [{"doc_id": "a", "text": "The sea is sweet."}]}),
        ("rag", {"documents": [*DOCUMENTS, *DOCUMENTS]}),
        ("model", {"model": "mistral"}),
        ("model", {"model": "mistral-alias"}),
    ],
)
@scenario
async def test_the_reason_is_the_part_that_differs(world: World, word: str, changed: dict[str, Any]) -> None:
    known = await start_known(world)
    assert await reason(known, **changed) == word


@scenario
async def test_where_many_parts_differ_the_reason_is_new(world: World) -> None:
    known = await start_known(world)
    assert await reason(known, "The land?", system="Be long.", model="mistral") == "new"


@scenario
async def test_a_hit_has_no_reason_and_an_alias_is_not_another_model(world: World) -> None:
    known = await start_known(world)
    for model in ("llama", LLAMA_ALIAS, "auto"):
        answer = await ask(known, model=model)
        assert answer.headers["x-cache"] == "HIT"
        assert "x-cache-reason" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_an_entry_beyond_its_time_to_live_has_expired(world: World, stream: bool) -> None:
    known = await start_known(world)
    redis = world.redis.client
    key = (await ask(known)).headers["x-cache-key"]
    await backdate_entry(redis, key, DAY + 1)
    await eventually(lambda: _is_missed(known, "expired"))


async def _is_missed(router: WorldRouter, word: str) -> bool:
    answer = await ask(router, headers=ONLY_IF_CACHED)
    return bool(answer.headers["x-cache"] == "MISS" and answer.headers["x-cache-reason"] == word)


@scenario
async def test_an_expired_entry_has_expired_for_a_router_that_has_never_seen_it(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    redis = world.redis.client
    key = (await ask(await world.router(config))).headers["x-cache-key"]
    await backdate_entry(redis, key, DAY + 1)
    assert await reason(await world.router(config)) == "expired"


@pytest.mark.parametrize("age", [100, DAY + 7200], ids=["too-old-for-the-client", "too-old-for-anybody"])
@scenario
async def test_an_entry_older_than_the_client_accepts_has_expired(world: World, age: float) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    redis = world.redis.client
    key = (await ask(await world.router(config))).headers["x-cache-key"]
    await backdate_entry(redis, key, age)
    assert await reason(await world.router(config), headers={"cache-control": "max-age=50"}) == "expired"


@scenario
async def test_an_entry_that_existed_and_is_gone_has_expired(world: World) -> None:
    known = await start_known(world)
    redis = world.redis.client
    key = (await ask(known)).headers["x-cache-key"]
    await redis.delete(key)
    await eventually(lambda: _is_missed(known, "expired"))


@scenario
async def test_after_redis_was_emptied_everything_is_new(world: World) -> None:
    known = await start_known(world)
    redis = world.redis.client

    async def emptied_and_new() -> bool:
        # Redis sends invalidations of writes at the end of an event loop iteration, but this one at once.
        # So the invalidation of a write just before it arrives after it.
        await redis.flushall()
        return await _is_missed(known, "new")

    await eventually(emptied_and_new)


@scenario
async def test_after_a_purge_nothing_is_remembered(world: World) -> None:
    known = await start_known(world)
    redis = world.redis.client

    async def purged_and_new() -> bool:
        # The router may learn that the entry was written, as its writer or from Redis, after it has read the purge.
        await redis.xadd(PURGE_LOG_KEY, {"scope": '{"all":true}'})
        return await _is_new(known)

    await eventually(purged_and_new)


OPEN_TO_ADMIN = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
PURGES: dict[str, dict[str, Any]] = {
    "all": {"all": True},
    "tenant": {"tenant": "default"},
    "document": {"document": "a"},
    "key": {},
}


@pytest.mark.parametrize("kind", PURGES)
@scenario
async def test_an_entry_that_was_purged_says_so_at_every_router_until_it_is_stored_again(
    world: World, kind: str
) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config(), rest=OPEN_TO_ADMIN)
    one, other = await world.router(config), await world.router(config)
    await eventually(lambda: _listens(other))
    key = (await ask(one)).headers["x-cache-key"]
    await eventually(lambda: _is_known(other))
    await _purge(one, PURGES[kind] or {"key": key})
    for router in (one, other):
        await eventually(partial(_is_missed, router, "purged"))
    assert await reason(one) == "purged"
    await eventually(lambda: _is_hit(one))
    await world.redis.client.delete(key)
    await eventually(lambda: _is_missed(one, "expired"))


async def _purge(router: WorldRouter, scope: dict[str, Any]) -> None:
    headers = {"authorization": "Bearer admin"}
    (await router.http.post("/admin/cache/purge", json=scope, headers=headers)).raise_for_status()


async def _is_hit(router: WorldRouter) -> bool:
    return (await ask(router, headers=ONLY_IF_CACHED)).headers["x-cache"] == "HIT"


@scenario
async def test_a_purge_of_other_entries_is_not_the_reason(world: World) -> None:
    known = await start_known(world)
    key = (await ask(known)).headers["x-cache-key"]
    await world.redis.client.xadd(PURGE_LOG_KEY, {"scope": '{"tenant":"somebody"}'})
    await eventually(lambda: _is_new(known))
    await world.redis.client.delete(key)
    await eventually(lambda: _is_missed(known, "expired"))


@scenario
async def test_a_purge_longer_ago_than_an_entry_lives_is_not_the_reason(world: World) -> None:
    router, _ = await default_router(world, cache='ttl = "1m"', rest=OPEN_TO_ADMIN)
    assert await reason(router) == "new"
    await eventually(lambda: _is_hit(router))
    await _purge(router, {"all": True})
    await eventually(lambda: _is_missed(router, "purged"))
    await asyncio.sleep(59)
    assert await _is_missed(router, "purged")
    await asyncio.sleep(2)
    # A router that reads of the purge after Redis has told it of the deletion has forgotten the key.
    assert await _is_missed(router, "expired") or await _is_missed(router, "new")


async def _is_new(router: WorldRouter) -> bool:
    answer = await ask(router, system="Be long.", headers=ONLY_IF_CACHED)
    return bool(answer.headers["x-cache-reason"] == "new")


# -- other replicas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        ("query", {"prompt": "The land?"}),
        ("system", {"system": "Be long."}),
        ("rag", {"documents": []}),
        ("query", {"temperature": 0.5}),  # a key has one part for the question and the parameters
    ],
)
@scenario
async def test_a_router_knows_the_keys_that_another_one_stores(
    world: World, word: str, changed: dict[str, Any]
) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    one, other = await world.router(config), await world.router(config)
    await eventually(lambda: _listens(other))
    assert await reason(one) == "new"
    await eventually(lambda: _is_known(other))
    assert await reason(other, **changed) == word


async def _listens(router: WorldRouter) -> bool:
    """Whether a router receives invalidations: only then it keeps local copies."""
    return "detail=local" in (await router.chat("Anything")).headers["cache-status"]


async def _is_known(router: WorldRouter) -> bool:
    """Whether a router knows the key: then another question differs from it."""
    answer = await ask(router, "A question that nobody asks", headers=ONLY_IF_CACHED)
    return bool(answer.headers["x-cache-reason"] == "query")


@scenario
async def test_another_revision_of_the_model_is_another_query(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    one = await world.router(config)
    other = await world.router(config.replace('revision = "1"', 'revision = "2"'))
    await eventually(lambda: _listens(other))
    assert await reason(one) == "new"
    await eventually(lambda: _is_known(other))
    assert await reason(other) == "query"


@scenario
async def test_the_requests_of_other_tenants_are_not_revealed(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    rest = '\n[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "beta"\n'
    router = await world.router(config + rest)
    acme, beta = {"x-tenant-id": "acme"}, {"x-tenant-id": "beta"}
    assert await reason(router, headers=acme) == "new"
    assert await reason(router, headers=acme, system="Be long.") == "system"
    assert await reason(router, headers=beta) == "new"


# -- in the log and for refused requests ------------------------------------------------------------------------------


@scenario
async def test_the_log_has_the_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    known = await start_known(world)
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        await ask(known, system="Be long.")
        await ask(known)
        await ask(known, headers={"cache-control": "no-store"})
        await eventually(lambda: len(caplog.messages) == 3)
    records = [dict(word.partition("=")[::2] for word in line.split()) for line in caplog.messages]
    assert [(line["cache"], line.get("reason")) for line in records] == [
        ("MISS", "system"), ("HIT", None), ("BYPASS", "no-store"),
    ]  # fmt: skip


@scenario
async def test_a_504_for_only_if_cached_has_its_reason_too(world: World) -> None:
    known = await start_known(world)
    answer = await ask(known, system="Be long.", headers=ONLY_IF_CACHED)
    assert (answer.status_code, answer.headers["x-cache-reason"]) == (504, "system")


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_response_that_could_not_be_written_is_not_stored_the_next_time(world: World, stream: bool) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    world.redis.is_full = True
    assert await reason(router, stream=stream) == "new"
    await eventually(lambda: _have_failed(router, 1))
    assert await reason(router, stream=stream) == "not-stored"
    await eventually(lambda: _have_failed(router, 2))
    world.redis.is_full = False
    assert await reason(router, stream=stream) == "not-stored"  # of the one before; this one is stored
    answer = await ask(router, stream=stream)
    assert answer.headers["x-cache"] == "HIT"
    await redis.delete(answer.headers["x-cache-key"])
    await eventually(lambda: _is_expired(router))


async def _is_expired(router: WorldRouter) -> bool:
    return bool((await ask(router, headers=ONLY_IF_CACHED)).headers.get("x-cache-reason") == "expired")


async def _have_failed(router: WorldRouter, count: int) -> bool:
    return (await router.metrics()).get('llm_cache_writes_total{result="failed"}') == count
