"""Cache directives of clients, over HTTP."""

from typing import Any

import httpx
import pytest

from tests.support.router_server import EngineSet, RouterServer
from tests.support.sse_answers import chat_text
from tests.support.time_travel import backdate_entry
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The sea?"


async def ask(
    router: RouterServer, directives: str | None = None, *, stream: bool = False, ttl: str | None = None
) -> httpx.Response:
    request_headers = {"cache-control": directives, "x-cache-ttl": ttl}
    headers = {name: value for name, value in request_headers.items() if value is not None}
    return await router.chat(PROMPT, stream=stream, headers=headers)


async def generations(engines: EngineSet) -> int:
    count: int = (await engines.chat.stats())["received"]
    return count


@pytest.mark.parametrize("stream", [False, True])
async def test_no_store_is_neither_looked_up_nor_stored(
    router: RouterServer, engines: EngineSet, redis: Any, stream: bool
) -> None:
    first = await ask(router, "no-store", stream=stream)
    assert (first.headers["x-cache"], first.headers["x-cache-reason"]) == ("BYPASS", "no-store")
    assert first.headers["cache-status"] == "roundhouse; fwd=bypass; detail=no-store"
    assert "x-cache-key" not in first.headers
    assert (await ask(router)).headers["x-cache"] == "MISS", "nothing was stored before"
    before = await generations(engines)
    assert (await ask(router, "no-store", stream=stream)).headers["x-cache"] == "BYPASS"
    assert await generations(engines) == before + 1, "what is stored is not looked up"
    assert len(await redis.keys("rh:1:default:*")) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_no_cache_uses_an_engine_and_its_response_replaces_the_stored_one(
    router: RouterServer, engines: EngineSet, redis: Any, stream: bool
) -> None:
    key = (await ask(router)).headers["x-cache-key"]
    await backdate_entry(redis, key, 100)
    before = await generations(engines)
    again = await ask(router, "no-cache", stream=stream)
    assert (again.headers["x-cache"], again.headers["x-cache-reason"]) == ("BYPASS", "no-cache")
    assert await generations(engines) == before + 1
    hit = await ask(router)
    assert hit.headers["x-cache"] == "HIT"
    assert int(hit.headers["age"]) < 50
    assert chat_text(hit) == chat_text(again)


async def test_max_age_accepts_no_older_entry(router: RouterServer, redis: Any) -> None:
    key = (await ask(router)).headers["x-cache-key"]
    await backdate_entry(redis, key, 100)
    assert (await ask(router, "max-age=200")).headers["x-cache"] == "HIT"
    fresh = await ask(router, "max-age=50")
    assert (fresh.headers["x-cache"], fresh.headers["x-cache-key"]) == ("MISS", key)
    assert (await ask(router, "max-age=50")).headers["x-cache"] == "HIT", "the fresh one was stored"


@pytest.mark.parametrize("stream", [False, True])
async def test_only_if_cached_never_uses_an_engine(router: RouterServer, engines: EngineSet, stream: bool) -> None:
    before = await generations(engines)
    refused = await ask(router, "only-if-cached", stream=stream)
    assert (refused.status_code, refused.headers["x-cache"]) == (504, "MISS")
    assert refused.json()["error"]["code"] == "not_cached"
    assert await generations(engines) == before
    await ask(router)
    hit = await ask(router, "only-if-cached", stream=stream)
    assert (hit.status_code, hit.headers["x-cache"]) == (200, "HIT")


async def test_only_if_cached_with_no_store_is_always_504(router: RouterServer) -> None:
    await ask(router)
    assert (await ask(router, "no-store, only-if-cached")).status_code == 504


async def test_a_client_can_shorten_the_time_to_live_but_not_extend_it(router: RouterServer, redis: Any) -> None:
    key = (await ask(router, ttl="100")).headers["x-cache-key"]
    assert 90 < await eventually(lambda: redis.ttl(key)) <= 100
    hit = await ask(router)
    assert hit.headers["cache-status"].startswith("roundhouse; hit; ttl=")
    assert int(hit.headers["cache-status"].rpartition("=")[2]) <= 100
    await ask(router, "no-cache", ttl=str(10**9))

    await eventually(lambda: has_default_lifetime(redis, key))


async def has_default_lifetime(redis: Any, key: str) -> bool:
    ttl: int = await redis.ttl(key)
    return 89_000 < ttl <= 90_000


async def test_a_time_to_live_of_zero_stores_nothing(router: RouterServer, redis: Any) -> None:
    assert (await ask(router, ttl="0")).headers["x-cache"] == "MISS"
    assert (await ask(router, ttl="0")).headers["x-cache"] == "MISS"
    assert await redis.keys("rh:1:default:*") == []


async def test_a_time_to_live_that_is_not_a_number_is_refused(router: RouterServer, engines: EngineSet) -> None:
    before = await generations(engines)
    refused = await ask(router, ttl="1h")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Cache-TTL")
    assert await generations(engines) == before


async def test_several_headers_are_combined(router: RouterServer) -> None:
    await ask(router)
    request_headers = [("cache-control", "no-transform"), ("cache-control", "no-cache")]
    body = {"model": "llama", "messages": [{"role": "user", "content": PROMPT}]}
    answer = await router.http.post("/v1/chat/completions", json=body, headers=request_headers)
    assert answer.headers["x-cache-reason"] == "no-cache"


async def test_unknown_directives_are_ignored(router: RouterServer) -> None:
    await ask(router)
    assert (await ask(router, "max-stale=60, no-transform, private")).headers["x-cache"] == "HIT"
