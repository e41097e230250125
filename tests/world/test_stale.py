"""Stale responses: served while no engine can answer, and to clients that accept them."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.fault_timeouts import timeouts_for
from tests.support.router_server import router_config
from tests.support.sse_answers import DONE_FRAME, chat_text
from tests.support.time_travel import DAY, backdate_entry
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import PROBED, World, scenario

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


async def start(world: World, **texts: str) -> tuple[WorldRouter, WorldEngines]:
    """`texts` are those of `router_config`."""
    engines = await world.engines()
    return await world.router(router_config(world.redis.url, engines.as_config(), **texts)), engines


async def ask(router: WorldRouter, directives: str | None = None, **fields: Any) -> httpx.Response:
    return await router.chat(PROMPT, headers={} if directives is None else {"cache-control": directives}, **fields)


async def all_engines_are_down(engines: WorldEngines, fault: dict[str, Any] = FAULTS[0]) -> None:
    await asyncio.gather(*(engine.set_faults(fault) for engine in engines))


async def received(engines: WorldEngines) -> int:
    """The number of generations that were started for llama."""
    return sum([int((await engine.stats())["received"]) for engine in (engines.chat, engines.code)])


async def ask_after_expiry(world: World, router: WorldRouter, seconds: float, **fields: Any) -> httpx.Response:
    """Stores an entry that has been stale for `seconds`; returns the next response."""
    answer = await ask(router, **fields)
    assert answer.headers["x-cache"] == "MISS"
    await backdate_entry(world.redis.client, answer.headers["x-cache-key"], DAY + seconds)
    return answer


# -- stale-if-error ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault.values())))
@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_while_no_engine_responds_a_stale_entry_is_served(
    world: World, fault: dict[str, Any], stream: bool
) -> None:
    timeouts = timeouts_for(fault, total=not stream)
    router, engines = await start(world, rest=timeouts)
    first = await ask_after_expiry(world, router, 10)
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


@scenario
async def test_an_entry_has_no_remaining_ttl_from_the_moment_it_becomes_stale(world: World) -> None:
    router, engines = await start(world)
    await ask_after_expiry(world, router, 0)
    await all_engines_are_down(engines)
    assert int((await ask(router)).headers["cache-status"].rpartition("ttl=")[2]) < 0


@scenario
async def test_a_fresh_entry_is_a_hit_whatever_the_state_of_the_engines(world: World) -> None:
    router, engines = await start(world)
    await ask(router)
    await all_engines_are_down(engines)
    assert (await ask(router)).headers["x-cache"] == "HIT"


@scenario
async def test_concurrent_requests_get_the_stale_entry_too(world: World) -> None:
    router, engines = await start(world)
    old = await ask_after_expiry(world, router, 10)
    for engine in engines:
        await engine.set_faults({"fault": "ttft", "ms": 100}, {"fault": "error", "after": 0})
    answers = await asyncio.gather(*(ask(router, stream=True) for _ in range(10)))
    assert [(answer.status_code, answer.headers["x-cache"]) for answer in answers] == [(200, "STALE")] * 10
    assert {chat_text(answer) for answer in answers} == {chat_text(old)}


@scenario
async def test_the_local_cache_serves_stale_entries_too(world: World) -> None:
    router, engines = await start(world, cache='ttl = "1s"')
    await ask(router)
    for _ in range(2):
        await asyncio.sleep(0.1)
        answer = await ask(router)
    assert answer.headers["cache-status"].endswith("; detail=local")
    await all_engines_are_down(engines)
    await asyncio.sleep(1)
    stale = await ask(router)
    assert stale.headers["x-cache"] == "STALE"
    assert stale.headers["cache-status"].endswith("; detail=local")


@scenario
async def test_failed_engines_do_not_prevent_stale_entries_from_being_served(world: World) -> None:
    dying_engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", dying_engine.url)}))
    await ask_after_expiry(world, router, 10)
    dying_engine.kill()
    for _ in range(2):
        assert (await ask(router)).headers["x-cache"] == "STALE"
    healthz, readyz = await router.http.get("/healthz"), await router.http.get("/readyz")
    assert (healthz.status_code, healthz.json()["status"]) == (503, "unhealthy")
    assert readyz.status_code == 503
    refused = await router.chat("Never asked before")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_engine")
    assert "retry-after" in refused.headers
    await dying_engine.start()
    await asyncio.sleep(PROBED)
    assert (await ask(router)).headers["x-cache"] == "MISS"
    assert (await ask(router)).headers["x-cache"] == "HIT"


# -- when it is not served --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_with_engines_up_a_stale_entry_is_a_miss_and_is_replaced(world: World, stream: bool) -> None:
    router, _ = await start(world)
    old = await ask_after_expiry(world, router, 10)
    answer = await ask(router, stream=stream)
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("MISS", "expired")
    assert answer.headers["cache-status"] == "roundhouse; fwd=stale"
    assert "age" not in answer.headers
    replaced = await ask(router)
    assert replaced.headers["x-cache"] == "HIT"
    assert int(replaced.headers["age"]) < 10
    assert replaced.json()["id"] != old.json()["id"]


@scenario
async def test_concurrent_requests_for_an_expired_entry_share_one_generation(world: World) -> None:
    router, engines = await start(world)
    other = await world.router(router_config(world.redis.url, engines.as_config()))
    await ask_after_expiry(world, router, 10)
    await engines.chat.set_faults({"fault": "tps", "rate": 100})
    before = await received(engines)
    answers = await asyncio.gather(*(ask(each, stream=True) for each in [router, other] * 5))
    assert await received(engines) == before + 1
    assert sorted(answer.headers["x-cache"] for answer in answers) == ["COALESCED"] * 9 + ["MISS"]
    assert len({chat_text(answer) for answer in answers}) == 1


@scenario
async def test_an_entry_older_than_stale_if_error_is_not_served(world: World) -> None:
    router, engines = await start(world)
    await ask_after_expiry(world, router, AN_HOUR + 1)
    await all_engines_are_down(engines)
    answer = await ask(router)
    assert (answer.status_code, answer.headers["x-cache"]) == (502, "MISS")


@scenario
async def test_with_stale_if_error_0_no_stale_entry_is_kept_or_served(world: World) -> None:
    router, engines = await start(world, cache="stale_if_error = 0")
    key = (await ask(router)).headers["x-cache-key"]
    await backdate_entry(world.redis.client, key, DAY + 1)
    assert await world.redis.client.ttl(key) <= DAY
    await all_engines_are_down(engines)
    assert (await ask(router)).status_code == 502


@scenario
async def test_an_entry_whose_ttl_a_client_has_shortened_is_never_stale(world: World) -> None:
    router, engines = await start(world)
    key = (await router.chat(PROMPT, headers={"x-cache-ttl": "100"})).headers["x-cache-key"]
    await backdate_entry(world.redis.client, key, 101)
    assert await world.redis.client.ttl(key) <= 100
    await all_engines_are_down(engines)
    assert (await ask(router)).status_code == 502


@pytest.mark.parametrize("code", [400, 413, 422])
@scenario
async def test_a_client_error_is_returned_instead_of_a_stale_entry(world: World, code: int) -> None:
    router, engines = await start(world)
    await ask_after_expiry(world, router, 10)
    await all_engines_are_down(engines, {"fault": "status", "code": code})
    assert (await ask(router)).status_code == code


@pytest.mark.parametrize("directives", ["no-store", "no-cache", f"max-age={DAY}"])
@scenario
async def test_a_client_that_refuses_stale_entries_gets_the_error(world: World, directives: str) -> None:
    router, engines = await start(world)
    await ask_after_expiry(world, router, 10)
    await all_engines_are_down(engines)
    answer = await ask(router, directives)
    assert answer.status_code == 502
    assert answer.headers["x-cache"] in ("BYPASS", "MISS")


@scenario
async def test_a_stream_that_broke_after_its_first_token_is_not_replaced_by_a_stale_entry(world: World) -> None:
    router, engines = await start(world)
    await ask_after_expiry(world, router, 10)
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
@scenario
async def test_a_client_limits_the_staleness_that_it_accepts(
    world: World, directives: str, age: float, status: str
) -> None:
    """RFC 9111, section 5.2.1."""
    router, engines = await start(world)
    key = (await ask(router)).headers["x-cache-key"]
    await backdate_entry(world.redis.client, key, age)
    before = await received(engines)
    answer = await ask(router, directives)
    assert answer.headers["x-cache"] == status
    assert await received(engines) == before + (status == "MISS")


@scenario
async def test_only_if_cached_alone_does_not_accept_a_stale_entry(world: World) -> None:
    router, _ = await start(world)
    await ask_after_expiry(world, router, 10)
    answer = await ask(router, "only-if-cached")
    assert (answer.status_code, answer.headers["x-cache"]) == (504, "MISS")
