"""Stale responses: served while no engine can answer, and to clients that accept them."""

import asyncio
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.fault_timeouts import timeouts_for
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import DONE_FRAME, chat_text
from tests.support.time_travel import DAY, backdate_entry
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The sea?"
AN_HOUR = 3600
"""Default of stale_if_error, in seconds."""

FAULTS: list[dict[str, Any]] = [
    {"fault": "status", "code": 500},
    {"fault": "status", "code": 429},
    {"fault": "status", "code": 401},
    {"fault": "drop"},
    {"fault": "stall", "after": 0},
]


async def ask(router: RouterServer, directives: str | None = None, **fields: Any) -> httpx.Response:
    return await router.chat(PROMPT, headers={} if directives is None else {"cache-control": directives}, **fields)


async def all_engines_are_down(engines: EngineSet, fault: dict[str, Any] = FAULTS[0]) -> None:
    await asyncio.gather(*(engine.set_faults(fault) for engine in engines))


async def received(engines: EngineSet) -> int:
    """The number of generations that were started for llama."""
    return sum([int((await engine.stats())["received"]) for engine in (engines.chat, engines.code)])


@pytest_asyncio.fixture(loop_scope="session")
async def old(router: RouterServer, redis: Any) -> httpx.Response:
    """An entry that has been stale for ten seconds, and is still in Redis."""
    return await ask_after_expiry(router, redis, 10)


async def ask_after_expiry(router: RouterServer, redis: Any, seconds: float, **fields: Any) -> httpx.Response:
    """Stores an entry that has been stale for `seconds`; returns the next response."""
    answer = await ask(router, **fields)
    assert answer.headers["x-cache"] == "MISS"
    await backdate_entry(redis, answer.headers["x-cache-key"], DAY + seconds)
    return answer


# -- stale-if-error ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault.values())))
@pytest.mark.parametrize("stream", [False, True])
async def test_while_no_engine_responds_a_stale_entry_is_served(
    redis_server: RedisServer,
    make_router: MakeRouter,
    engines: EngineSet,
    redis: Any,
    fault: dict[str, Any],
    stream: bool,
) -> None:
    timeouts = timeouts_for(fault, total=not stream)
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=timeouts))
    first = await ask_after_expiry(router, redis, 10)
    await all_engines_are_down(engines, fault)
    answer = await ask(router, stream=stream)
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "STALE")
    assert chat_text(answer) == chat_text(first)
    assert answer.content.endswith(DONE_FRAME) is stream
    assert answer.headers["x-cache-key"] == first.headers["x-cache-key"]
    assert answer.headers["x-engine"] == first.headers["x-engine"]
    assert "x-cache-reason" not in answer.headers
    assert DAY + 10 <= int(answer.headers["age"]) <= DAY + 20
    status, hit, ttl = answer.headers["cache-status"].split("; ")
    assert (status, hit) == ("roundhouse", "hit")
    assert -20 <= int(ttl.removeprefix("ttl=")) <= -10
    assert (await router.metrics())['llm_cache_requests_total{model="llama",result="stale",tenant="default"}'] == 1


async def test_an_entry_has_no_remaining_ttl_from_the_moment_it_becomes_stale(
    router: RouterServer, engines: EngineSet, redis: Any
) -> None:
    await ask_after_expiry(router, redis, 0)
    await all_engines_are_down(engines)
    assert int((await ask(router)).headers["cache-status"].rpartition("ttl=")[2]) < 0


async def test_a_fresh_entry_is_a_hit_whatever_the_state_of_the_engines(
    router: RouterServer, engines: EngineSet
) -> None:
    await ask(router)
    await all_engines_are_down(engines)
    assert (await ask(router)).headers["x-cache"] == "HIT"


async def test_concurrent_requests_get_the_stale_entry_too(
    router: RouterServer, engines: EngineSet, old: httpx.Response
) -> None:
    for engine in engines:
        await engine.set_faults({"fault": "ttft", "ms": 100}, {"fault": "error", "after": 0})
    answers = await asyncio.gather(*(ask(router, stream=True) for _ in range(10)))
    assert [(answer.status_code, answer.headers["x-cache"]) for answer in answers] == [(200, "STALE")] * 10
    assert {chat_text(answer) for answer in answers} == {chat_text(old)}


async def test_the_local_cache_serves_stale_entries_too(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), cache='ttl = "1s"'))
    await ask(router)

    async def is_in_local_cache() -> bool:
        return (await ask(router)).headers["cache-status"].endswith("; detail=local")

    await eventually(is_in_local_cache)
    await all_engines_are_down(engines)

    async def is_stale_and_local() -> bool:
        stale = await served_with(router, "STALE")
        return stale is not None and stale.headers["cache-status"].endswith("; detail=local")

    await eventually(is_stale_and_local)


async def served_with(router: RouterServer, status: str) -> httpx.Response | None:
    answer = await ask(router)
    return answer if answer.headers.get("x-cache") == status else None


async def test_failed_engines_do_not_prevent_stale_entries_from_being_served(
    redis_server: RedisServer, make_router: MakeRouter, redis: Any
) -> None:
    async with SimulatedEngine(LLAMA) as dying_engine:
        router = await make_router(router_config(redis_server.url, {"one": ("llama", "any", dying_engine.url)}))
        await ask_after_expiry(router, redis, 10)
        await dying_engine.kill()
        for _ in range(2):
            assert (await ask(router)).headers["x-cache"] == "STALE"
        healthz, readyz = await router.http.get("/healthz"), await router.http.get("/readyz")
        assert (healthz.status_code, healthz.json()["status"]) == (503, "unhealthy")
        assert readyz.status_code == 503
        refused = await router.chat("Never asked before")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_engine")
        assert "retry-after" in refused.headers
        await dying_engine.start()
        await eventually(lambda: served_with(router, "MISS"))
        assert (await ask(router)).headers["x-cache"] == "HIT"


# -- when it is not served --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_with_engines_up_a_stale_entry_is_a_miss_and_is_replaced(
    router: RouterServer, engines: EngineSet, old: httpx.Response, stream: bool
) -> None:
    answer = await ask(router, stream=stream)
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("MISS", "expired")
    assert answer.headers["cache-status"] == "roundhouse; fwd=stale"
    assert "age" not in answer.headers
    replaced = await ask(router)
    assert replaced.headers["x-cache"] == "HIT"
    assert int(replaced.headers["age"]) < 10
    assert replaced.json()["id"] != old.json()["id"]


async def test_concurrent_requests_for_an_expired_entry_share_one_generation(
    config: str, make_router: MakeRouter, router: RouterServer, engines: EngineSet, old: httpx.Response
) -> None:
    other = await make_router(config)
    await engines.chat.set_faults({"fault": "tps", "rate": 100})
    before = await received(engines)
    answers = await asyncio.gather(*(ask(each, stream=True) for each in [router, other] * 5))
    assert await received(engines) == before + 1
    assert sorted(answer.headers["x-cache"] for answer in answers) == ["COALESCED"] * 9 + ["MISS"]
    assert len({chat_text(answer) for answer in answers}) == 1


async def test_an_entry_older_than_stale_if_error_is_not_served(
    router: RouterServer, engines: EngineSet, redis: Any
) -> None:
    await ask_after_expiry(router, redis, AN_HOUR + 1)
    await all_engines_are_down(engines)
    answer = await ask(router)
    assert (answer.status_code, answer.headers["x-cache"]) == (502, "MISS")


async def test_with_stale_if_error_0_no_stale_entry_is_kept_or_served(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet, redis: Any
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), cache="stale_if_error = 0"))
    key = (await ask(router)).headers["x-cache-key"]
    await backdate_entry(redis, key, DAY + 1)
    assert await redis.ttl(key) <= DAY
    await all_engines_are_down(engines)
    assert (await ask(router)).status_code == 502


async def test_an_entry_whose_ttl_a_client_has_shortened_is_never_stale(
    router: RouterServer, engines: EngineSet, redis: Any
) -> None:
    key = (await router.chat(PROMPT, headers={"x-cache-ttl": "100"})).headers["x-cache-key"]
    await backdate_entry(redis, key, 101)
    assert await redis.ttl(key) <= 100
    await all_engines_are_down(engines)
    assert (await ask(router)).status_code == 502


@pytest.mark.parametrize("code", [400, 413, 422])
async def test_a_client_error_is_returned_instead_of_a_stale_entry(
    router: RouterServer, engines: EngineSet, old: httpx.Response, code: int
) -> None:
    await all_engines_are_down(engines, {"fault": "status", "code": code})
    assert (await ask(router)).status_code == code


@pytest.mark.parametrize("directives", ["no-store", "no-cache", f"max-age={DAY}"])
async def test_a_client_that_refuses_stale_entries_gets_the_error(
    router: RouterServer, engines: EngineSet, old: httpx.Response, directives: str
) -> None:
    await all_engines_are_down(engines)
    answer = await ask(router, directives)
    assert answer.status_code == 502
    assert answer.headers["x-cache"] in ("BYPASS", "MISS")


async def test_a_stream_that_broke_after_its_first_token_is_not_replaced_by_a_stale_entry(
    router: RouterServer, engines: EngineSet, old: httpx.Response
) -> None:
    for engine in engines:
        await engine.set_faults({"fault": "tps", "rate": 50}, {"fault": "error", "after": 3})
    answer = await ask(router, stream=True)
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert b'"error"' in answer.content
    assert DONE_FRAME not in answer.content


# -- max-stale --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "age", "status"),
    [
        ("max-stale=100", DAY + 10, "STALE"),
        ("max-stale", DAY + 10, "STALE"),
        ("max-stale=5", DAY + 10, "MISS"),
        ("max-stale=0", DAY + 10, "MISS"),
        ("max-stale=soon", DAY + 10, "MISS"),
        ("max-stale=100", 10, "HIT"),
        ("max-age=50", 100, "MISS"),
        ("max-age=50, max-stale=100", 100, "HIT"),
        ("max-age=50, max-stale=20", 100, "MISS"),
        ("max-stale, max-age=50", DAY + 10, "STALE"),
        ("max-age=1000000, max-stale=100", DAY + 10, "STALE"),
        ("only-if-cached, max-stale=100", DAY + 10, "STALE"),
    ],
)
async def test_a_client_limits_the_staleness_that_it_accepts(
    router: RouterServer, engines: EngineSet, redis: Any, directives: str, age: float, status: str
) -> None:
    """RFC 9111, section 5.2.1."""
    key = (await ask(router)).headers["x-cache-key"]
    await backdate_entry(redis, key, age)
    before = await received(engines)
    answer = await ask(router, directives)
    assert answer.headers["x-cache"] == status
    assert await received(engines) == before + (status == "MISS")


async def test_only_if_cached_alone_does_not_accept_a_stale_entry(router: RouterServer, old: httpx.Response) -> None:
    answer = await ask(router, "only-if-cached")
    assert (answer.status_code, answer.headers["x-cache"]) == (504, "MISS")
