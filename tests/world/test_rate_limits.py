"""A tenant's rate limits over HTTP: 429 with Retry-After, counted across all routers."""

import asyncio
import time

import httpx
import pytest

from router.core.cache.redis_keys import limit_key
from tests.support.limited_tenants import ACME, FREE, ask, tenant_tables
from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines
from tests.world.scenario import World, scenario

KEY = limit_key("acme")


def limited(world: World, engines: WorldEngines, limits: str) -> str:
    return router_config(world.redis.url, engines.as_config(), rest=tenant_tables(limits))


def scripted(world: World, engine: ScriptedEngine, limits: str) -> str:
    return router_config(world.redis.url, {"scripted": ("llama", "any", engine.url)}, rest=tenant_tables(limits))


def limit_headers(answer: httpx.Response, what: str) -> tuple[int, int, str]:
    """The limit, what remains, and the time until it is replenished."""
    named = [answer.headers[f"x-ratelimit-{which}-{what}"] for which in ("limit", "remaining", "reset")]
    return int(named[0]), int(named[1]), named[2]


# -- requests per minute ----------------------------------------------------------------------------------------------


@scenario
async def test_every_response_to_a_tenant_with_limits_has_the_remaining_quota(world: World) -> None:
    engines = await world.engines()
    router = await world.router(limited(world, engines, "requests_per_minute = 6\ntokens_per_minute = 5000"))
    kinds = []
    for number, (prompt, stream) in enumerate([("The sea?", False), ("The sea?", True), ("The land?", True)]):
        answer = await ask(router, prompt, stream=stream)
        kinds.append(answer.headers["x-cache"])
        assert limit_headers(answer, "requests")[:2] == (6, 5 - number)
        assert limit_headers(answer, "requests")[2] in ("59s", "1m0s")
        assert limit_headers(answer, "tokens")[0] == 5000
    assert kinds == ["MISS", "HIT", "MISS"]
    bad = await router.post("/v1/chat/completions", b"{}", **ACME)
    assert (bad.status_code, limit_headers(bad, "requests")[1]) == (400, 2), "an error has the headers too"
    assert not [name for name in (await router.chat("The sea?", headers=FREE)).headers if "ratelimit" in name]


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_request_over_the_limit_is_refused_with_the_time_to_wait(world: World, stream: bool) -> None:
    engines = await world.engines()
    router = await world.router(limited(world, engines, "requests_per_minute = 2"))
    assert [(await ask(router)).headers["x-cache"] for _ in range(2)] == ["MISS", "HIT"], "a hit is a request"
    before = (await engines.chat.stats())["received"]
    answer = await ask(router, "another", stream=stream)
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/json")
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
    assert 55 <= int(answer.headers["retry-after"]) <= 60, "openai-python waits no longer"
    assert limit_headers(answer, "requests")[:2] == (2, 0)
    assert "x-cache" not in answer.headers
    assert (await ask(router)).status_code == 429, "nothing is looked up"
    assert (await engines.chat.stats())["received"] == before
    metrics = await router.metrics()
    assert metrics['llm_requests_rejected_total{reason="requests_limit",tenant="acme"}'] == 2
    assert (await router.chat("The sea?", headers=FREE)).status_code == 200, "other tenants have their own"


@scenario
async def test_of_many_requests_at_two_routers_exactly_the_limit_is_admitted(world: World) -> None:
    engines = await world.engines()
    text = limited(world, engines, "requests_per_minute = 13")
    routers = [await world.router(text), await world.router(text)]
    answers = await asyncio.gather(*(ask(routers[n % 2], f"Sea {n % 5}?", stream=n % 3 == 0) for n in range(60)))
    assert [answer.status_code for answer in answers].count(200) == 13
    assert [answer.status_code for answer in answers].count(429) == 47


# -- tokens per minute ------------------------------------------------------------------------------------------------


@scenario
async def test_generated_tokens_are_charged_and_hits_and_followers_are_free(world: World) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":70}}\n\n'
    pieces = (ROLE_FRAME + chat_frame(content="one"), chat_frame(content="", finish="stop") + usage + DONE_FRAME)
    engine = await world.scripted_engine(*pieces, paced=True)
    router = await world.router(scripted(world, engine, "tokens_per_minute = 150"))
    leading = asyncio.ensure_future(ask(router, stream=True))
    await eventually(lambda: engine.bodies)
    following = [asyncio.ensure_future(ask(router, stream=True)) for _ in range(3)]
    async with open_stream(router, "The sea?", headers=ACME) as another:
        await another.read_until_text("one")
        assert another.headers["x-cache"] == "COALESCED"
        engine.chunk_permits.release()
        await another.read_to_end()
    caches = [(await answer).headers["x-cache"] for answer in (leading, *following)]
    assert caches[0] == "MISS"
    assert set(caches[1:]) <= {"COALESCED", "HIT"}
    assert len(engine.bodies) == 1
    hit = await ask(router, stream=True)
    assert hit.headers["x-cache"] == "HIT"
    assert limit_headers(hit, "tokens")[0] == 150
    assert 50 <= limit_headers(hit, "tokens")[1] <= 60, "one generation of 100 was subtracted, and some are refilled"


@scenario
async def test_a_tenant_in_debt_waits_until_its_level_is_positive(world: World) -> None:
    engines = await world.engines()
    router = await world.router(limited(world, engines, "tokens_per_minute = 40"))
    assert (await ask(router)).status_code == 200
    answer = await ask(router)
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "tokens"
    assert limit_headers(answer, "tokens")[:2] == (40, 0)
    wait = int(answer.headers["retry-after"])
    assert wait > 10
    assert (await router.metrics())['llm_requests_rejected_total{reason="tokens_limit",tenant="acme"}'] == 1
    await asyncio.sleep(wait - 2)
    assert (await ask(router)).status_code == 429
    await asyncio.sleep(2)
    assert (await ask(router)).status_code == 200


@scenario
async def test_a_client_that_disconnects_early_is_charged_for_the_tokens_so_far(world: World) -> None:
    pieces = [chat_frame(content=f"word{n} ") for n in range(200)]
    engine = await world.scripted_engine(ROLE_FRAME, *pieces, hold=True)
    text = scripted(world, engine, "tokens_per_minute = 150").replace("[cache]", '[cache]\non_abandon = "cancel"')
    router = await world.router(text)
    async with open_stream(router, "The sea?", headers=ACME) as answer:
        await answer.read_until_text("word199")
    await asyncio.wait_for(engine.client_disconnected.wait(), 5)

    async def is_refused() -> bool:
        return (await router.http.post("/v1/chat/completions", content=b"{}", headers=ACME)).status_code == 429

    await eventually(is_refused)


# -- concurrent requests ----------------------------------------------------------------------------------------------


@scenario
async def test_the_concurrency_limit_holds_over_both_routers(world: World) -> None:
    engines = await world.engines()
    text = limited(world, engines, "concurrent_requests = 3")
    routers = [await world.router(text), await world.router(text)]
    await engines.chat.set_faults({"fault": "stall", "after": 3})
    async with open_stream(routers[0], "0?", headers=ACME), open_stream(routers[1], "1?", headers=ACME):
        async with open_stream(routers[0], "2?", headers=ACME) as third:
            assert third.status == 200
            await engines.chat.clear_faults()
            refused = [await ask(router, stream=stream) for router in routers for stream in (False, True)]
            assert [answer.status_code for answer in refused] == [429] * 4
            error = refused[0].json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert refused[0].headers["retry-after"] == "1"
            assert (await routers[1].chat("The sea?", headers=FREE)).status_code == 200

        async def is_admitted() -> bool:
            return (await ask(routers[1])).status_code == 200

        await eventually(is_admitted)


@scenario
async def test_an_error_and_a_hit_release_their_slot(world: World) -> None:
    engines = await world.engines()
    router = await world.router(limited(world, engines, "concurrent_requests = 1"))
    for _ in range(3):
        assert (await router.post("/v1/chat/completions", b"{}", **ACME)).status_code == 400
        assert (await ask(router)).status_code == 200
        assert (await ask(router, stream=True)).status_code == 200


@scenario
async def test_the_slots_of_a_killed_router_are_released(world: World) -> None:
    engines = await world.engines()
    text = limited(world, engines, "concurrent_requests = 2")
    router, other = await world.router(text), await world.router(text)
    await engines.chat.set_faults({"fault": "stall", "after": 3})
    requests = [asyncio.ensure_future(ask(other, f"{n}?", stream=True)) for n in range(2)]
    await engines.chat.stats(in_flight=2)
    await engines.chat.clear_faults()
    assert (await ask(router)).status_code == 429
    other.kill()
    await asyncio.wait(requests)
    assert all(isinstance(one.exception(), httpx.TransportError) for one in requests)
    assert (await ask(router)).status_code == 429
    await asyncio.sleep(5)
    assert (await ask(router)).status_code == 200


# -- without Redis ----------------------------------------------------------------------------------------------------


@scenario
async def test_a_tenant_without_limits_sends_nothing_to_redis(world: World) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await world.router(limited(world, engines, "requests_per_minute = 5"))
    await router.chat("The sea?", headers=FREE)
    assert [key async for key in redis.scan_iter("rh:1:limit:*")] == []
    await ask(router)
    assert [key async for key in redis.scan_iter("rh:1:limit:*")] == [KEY]


@scenario
async def test_with_a_frozen_redis_requests_continue_and_limits_hold_in_each_router(world: World) -> None:
    engines = await world.engines()
    text = limited(world, engines, "requests_per_minute = 4").replace('"500ms"', '"100ms"')
    router = await world.router(text)
    assert (await ask(router)).status_code == 200
    world.redis.freeze()
    started = time.monotonic()
    answers = [await ask(router, f"{n}?") for n in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
    assert time.monotonic() - started < 5
    assert limit_headers(answers[0], "requests")[:2] == (4, 3), "the full limit, since the earlier usage is unknown"
    world.redis.thaw()

    async def is_admitted() -> bool:
        return (await ask(router)).status_code == 200

    await eventually(is_admitted)
