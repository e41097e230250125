"""The miss reason in X-Cache-Reason and in the log."""

import logging
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.core.cache.redis_keys import PURGE_LOG_KEY
from tests.support.router_server import LLAMA_ALIAS, MakeRouter, RouterServer
from tests.support.time_travel import DAY, backdate_entry
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SYSTEM, PROMPT = "Be brief.", "The sea?"
ONLY_IF_CACHED = {"cache-control": "only-if-cached"}
"""With it, a request changes nothing."""
DOCUMENTS = [{"doc_id": "a", "text": "The sea is salt."}]


async def ask(
    router: RouterServer, prompt: str = PROMPT, *, system: str = SYSTEM, headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:  # fmt: skip
    """Sends a request with a system prompt and a document."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    body = {"model": "llama", "messages": messages, "documents": DOCUMENTS, **fields}
    return await router.http.post("/v1/chat/completions", json=body, headers=headers)


async def reason(router: RouterServer, *args: Any, **fields: Any) -> str | None:
    answer = await ask(router, *args, **fields)
    assert answer.headers["x-cache"] == "MISS"
    assert answer.headers["cache-status"].startswith("roundhouse; fwd=")
    word: str | None = answer.headers.get("x-cache-reason")
    return word


@pytest_asyncio.fixture(loop_scope="session")
async def known(router: RouterServer) -> RouterServer:
    """A router that has answered the question once."""
    assert await reason(router) == "new"
    return router


@pytest.mark.parametrize("stream", [False, True])
async def test_a_first_request_is_new(router: RouterServer, stream: bool) -> None:
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
async def test_the_reason_is_the_part_that_differs(known: RouterServer, word: str, changed: dict[str, Any]) -> None:
    assert await reason(known, **changed) == word


async def test_where_many_parts_differ_the_reason_is_new(known: RouterServer) -> None:
    assert await reason(known, "The land?", system="Be long.", model="mistral") == "new"


async def test_a_hit_has_no_reason_and_an_alias_is_not_another_model(known: RouterServer) -> None:
    for model in ("llama", LLAMA_ALIAS, "auto"):
        answer = await ask(known, model=model)
        assert answer.headers["x-cache"] == "HIT"
        assert "x-cache-reason" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_an_entry_beyond_its_time_to_live_has_expired(known: RouterServer, redis: Any, stream: bool) -> None:
    key = (await ask(known)).headers["x-cache-key"]
    await backdate_entry(redis, key, DAY + 1)
    await eventually(lambda: _is_missed(known, "expired"))


async def _is_missed(router: RouterServer, word: str) -> bool:
    answer = await ask(router, headers=ONLY_IF_CACHED)
    return bool(answer.headers["x-cache"] == "MISS" and answer.headers["x-cache-reason"] == word)


async def test_an_expired_entry_has_expired_for_a_router_that_has_never_seen_it(
    make_router: MakeRouter, config: str, redis: Any
) -> None:
    key = (await ask(await make_router(config))).headers["x-cache-key"]
    await backdate_entry(redis, key, DAY + 1)
    assert await reason(await make_router(config)) == "expired"


@pytest.mark.parametrize("age", [100, DAY + 7200], ids=["too-old-for-the-client", "too-old-for-anybody"])
async def test_an_entry_older_than_the_client_accepts_has_expired(
    make_router: MakeRouter, config: str, redis: Any, age: float
) -> None:
    key = (await ask(await make_router(config))).headers["x-cache-key"]
    await backdate_entry(redis, key, age)
    assert await reason(await make_router(config), headers={"cache-control": "max-age=50"}) == "expired"


async def test_an_entry_that_existed_and_is_gone_has_expired(known: RouterServer, redis: Any) -> None:
    key = (await ask(known)).headers["x-cache-key"]
    await redis.delete(key)
    await eventually(lambda: _is_missed(known, "expired"))


async def test_after_redis_was_emptied_everything_is_new(known: RouterServer, redis: Any) -> None:
    async def emptied_and_new() -> bool:
        # Redis sends invalidations of writes at the end of an event loop iteration, but this one at once.
        # So the invalidation of a write just before it arrives after it.
        await redis.flushall()
        return await _is_missed(known, "new")

    await eventually(emptied_and_new)


async def test_after_a_purge_nothing_is_remembered(known: RouterServer, redis: Any) -> None:
    async def purged_and_new() -> bool:
        # The router may learn that the entry was written, as its writer or from Redis, after it has read the purge.
        await redis.xadd(PURGE_LOG_KEY, {"scope": '{"all":true}'})
        return await _is_new(known)

    await eventually(purged_and_new)


async def _is_new(router: RouterServer) -> bool:
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
async def test_a_router_knows_the_keys_that_another_one_stores(
    make_router: MakeRouter, config: str, word: str, changed: dict[str, Any]
) -> None:
    one, other = await make_router(config), await make_router(config)
    await eventually(lambda: _listens(other))
    assert await reason(one) == "new"
    await eventually(lambda: _is_known(other))
    assert await reason(other, **changed) == word


async def _listens(router: RouterServer) -> bool:
    """Whether a router receives invalidations: only then it keeps local copies."""
    return "detail=local" in (await router.chat("Anything")).headers["cache-status"]


async def _is_known(router: RouterServer) -> bool:
    """Whether a router knows the key: then another question differs from it."""
    answer = await ask(router, "A question that nobody asks", headers=ONLY_IF_CACHED)
    return bool(answer.headers["x-cache-reason"] == "query")


async def test_another_revision_of_the_model_is_another_query(make_router: MakeRouter, config: str) -> None:
    one = await make_router(config)
    other = await make_router(config.replace('revision = "1"', 'revision = "2"'))
    await eventually(lambda: _listens(other))
    assert await reason(one) == "new"
    await eventually(lambda: _is_known(other))
    assert await reason(other) == "query"


async def test_the_requests_of_other_tenants_are_not_revealed(make_router: MakeRouter, config: str) -> None:
    rest = '\n[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "beta"\n'
    router = await make_router(config + rest)
    acme, beta = {"x-tenant-id": "acme"}, {"x-tenant-id": "beta"}
    assert await reason(router, headers=acme) == "new"
    assert await reason(router, headers=acme, system="Be long.") == "system"
    assert await reason(router, headers=beta) == "new"


# -- in the log and for refused requests ------------------------------------------------------------------------------


async def test_the_log_has_the_reason(known: RouterServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        await ask(known, system="Be long.")
        await ask(known)
        await ask(known, headers={"cache-control": "no-store"})
        await eventually(lambda: len(caplog.messages) == 3)
    records = [dict(word.partition("=")[::2] for word in line.split()) for line in caplog.messages]
    assert [(line["cache"], line.get("reason")) for line in records] == [
        ("MISS", "system"), ("HIT", None), ("BYPASS", "no-store"),
    ]  # fmt: skip


async def test_a_504_for_only_if_cached_has_its_reason_too(known: RouterServer) -> None:
    answer = await ask(known, system="Be long.", headers=ONLY_IF_CACHED)
    assert (answer.status_code, answer.headers["x-cache-reason"]) == (504, "system")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_could_not_be_written_is_not_stored_the_next_time(
    router: RouterServer, redis: Any, stream: bool
) -> None:
    await redis.config_set("maxmemory", 1)
    assert await reason(router, stream=stream) == "new"
    await eventually(lambda: _has_failed(router))
    assert await reason(router, stream=stream) == "not-stored"
    await redis.config_set("maxmemory", 0)
    assert await reason(router, stream=stream) == "not-stored"  # of the one before; this one is stored
    answer = await ask(router, stream=stream)
    assert answer.headers["x-cache"] == "HIT"
    await redis.delete(answer.headers["x-cache-key"])
    await eventually(lambda: _is_expired(router))


async def _is_expired(router: RouterServer) -> bool:
    return bool((await ask(router, headers=ONLY_IF_CACHED)).headers.get("x-cache-reason") == "expired")


async def _has_failed(router: RouterServer) -> bool:
    return (await router.metrics()).get('llm_cache_writes_total{result="failed"}', 0) > 0
