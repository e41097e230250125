"""Circuit breakers: shared by all routers, opened for good reasons only, and closed again."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.router_server import router_config
from tests.support.streaming_client import open_stream
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import PROBED, World, scenario

FAILS = {"fault": "status", "code": 500}
LONG_COOLDOWN = '[breaker]\nfailures = 3\ncooldown = "1h"'
COOLDOWN = 0.2  # seconds
SHORT_COOLDOWN = '[breaker]\nfailures = 3\ncooldown = "200ms"'


def two_llamas(redis_url: str, engines: WorldEngines, rest: str) -> str:
    """`first` is preferred, as long as its breaker is closed."""
    first, second = ("llama", "chat", engines.chat.url), ("llama", "any", engines.code.url)
    return router_config(redis_url, {"first": first, "second": second}, rest=rest)


def one_llama(redis_url: str, engines: WorldEngines, rest: str) -> str:
    return router_config(redis_url, {"first": ("llama", "chat", engines.chat.url)}, rest=rest)


async def ask(router: WorldRouter, prompt: str = "The sea?", **fields: Any) -> httpx.Response:
    """A request that bypasses the cache; of a session, for which small differences of drafts do not count."""
    return await router.chat(prompt, headers={"cache-control": "no-store", "x-session-id": "one"}, **fields)


async def state(router: WorldRouter, engine: str = "first") -> str:
    """The state in /healthz and /metrics; both are read again while it changes."""
    while True:
        before, metrics, after = await healthz_breakers(router), await router.metrics(), await healthz_breakers(router)
        if before == after:
            number = {"closed": 0, "half-open": 1, "open": 2}[before[engine]]
            assert metrics[f'roundhouse_breaker_state{{engine="{engine}"}}'] == number
            return before[engine]


async def healthz_breakers(router: WorldRouter) -> dict[str, str]:
    page = (await router.http.get("/healthz")).json()
    states = {name: str(facts["breaker"]) for name, facts in page["engines"].items()}
    assert page["circuit_breaker_open"] is ("open" in states.values())
    return states


async def pass_time(seconds: float, state_then: str, *routers: WorldRouter) -> None:
    await asyncio.sleep(seconds)
    assert [await state(router) for router in routers] == [state_then] * len(routers)


async def received(engines: WorldEngines) -> int:
    return int((await engines.chat.stats())["received"])


# -- failures, over two routers ---------------------------------------------------------------------------------------


@scenario
async def test_a_breaker_that_one_router_opens_excludes_the_engine_for_all(world: World) -> None:
    engines = await world.engines()
    text = two_llamas(world.redis.url, engines, LONG_COOLDOWN)
    one, other = await world.router(text), await world.router(text)
    await engines.chat.set_faults(FAILS)
    for _ in range(3):
        assert (await ask(one)).headers["x-engine"] == "second"
    await pass_time(0.1, "open", one, other)
    before = await received(engines)
    for router in (one, other):
        assert (await ask(router)).headers["x-engine"] == "second"
        assert (await router.http.get("/healthz")).json()["status"] == "degraded"
        assert (await router.http.get("/readyz")).status_code == 200
    assert await received(engines) == before


@scenario
async def test_one_request_of_all_routers_probes_a_half_open_breaker_and_closes_it_for_all(world: World) -> None:
    engines = await world.engines()
    text = two_llamas(world.redis.url, engines, SHORT_COOLDOWN)
    one, other = await world.router(text), await world.router(text)
    await engines.chat.set_faults({**FAILS, "times": 3})
    for _ in range(3):
        await ask(one)
    await pass_time(COOLDOWN + 0.1, "half-open", one, other)
    await engines.chat.set_faults({"fault": "ttft", "ms": 500, "times": 1})
    before = await received(engines)
    answers = await asyncio.gather(*(ask(router, f"{n}?") for router in (one, other) for n in range(10)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert sorted(answer.headers["x-engine"] for answer in answers) == ["first"] + ["second"] * 19
    assert await received(engines) == before + 1
    await pass_time(0.1, "closed", one, other)
    assert [(await ask(router)).headers["x-engine"] for router in (one, other)] == ["first", "first"]


@scenario
async def test_a_failed_probe_opens_the_breaker_again_and_no_client_fails(world: World) -> None:
    engines = await world.engines()
    router = await world.router(two_llamas(world.redis.url, engines, SHORT_COOLDOWN))
    await engines.chat.set_faults(FAILS)
    before = await received(engines)
    for count in range(3):
        assert (await ask(router)).headers["x-engine"] == "second"
        assert await received(engines) == before + count + 1
    await pass_time(COOLDOWN, "half-open", router)
    assert (await ask(router)).headers["x-engine"] == "second"
    assert await received(engines) == before + 4
    await pass_time(COOLDOWN, "half-open", router)


@scenario
async def test_without_redis_each_router_has_its_own_breakers(world: World) -> None:
    engines = await world.engines()
    world.redis.stop()
    text = two_llamas(world.redis.url, engines, SHORT_COOLDOWN)
    one, other = await world.router(text), await world.router(text)
    await engines.chat.set_faults({**FAILS, "times": 3})
    for _ in range(3):
        assert (await ask(one)).headers["x-engine"] == "second"
    assert await state(other) == "closed"
    await pass_time(COOLDOWN, "half-open", one)
    assert (await ask(one)).headers["x-engine"] == "first"
    assert await state(one) == "closed"


# -- what does not open a breaker -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 404, 408, 429])
@scenario
async def test_a_4xx_opens_no_breaker(world: World, code: int) -> None:
    engines = await world.engines()
    router = await world.router(one_llama(world.redis.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "status", "code": code})
    for _ in range(4):
        # After a 401, the engine gets no requests.
        expected = {404: (404,), 429: (503,), 401: (502, 503)}.get(code, (502,))
        assert (await ask(router)).status_code in expected
    assert await state(router) == "closed"


@scenario
async def test_a_client_whose_requests_are_refused_opens_no_breaker(world: World) -> None:
    engines = await world.engines()
    router = await world.router(one_llama(world.redis.url, engines, LONG_COOLDOWN))
    for stream in (False, True) * 3:
        assert (await ask(router, "far too long " * 5000, stream=stream)).status_code == 400
    assert await state(router) == "closed"


@scenario
async def test_an_engine_that_sends_retry_after_is_busy_and_not_failed(world: World) -> None:
    engines = await world.engines()
    router = await world.router(two_llamas(world.redis.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "status", "code": 503, "retry_after": "30", "times": 1})
    before = await received(engines)
    for _ in range(4):
        assert (await ask(router)).headers["x-engine"] == "second"
    assert await received(engines) == before + 1, "it was tried once, and not again before its Retry-After"
    assert await state(router) == "closed"


@scenario
async def test_the_retry_after_of_engines_reaches_the_client(world: World) -> None:
    engines = await world.engines()
    router = await world.router(one_llama(world.redis.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "status", "code": 429, "retry_after": "7"})
    before = await received(engines)
    answer = await ask(router)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert await received(engines) == before + 1


@scenario
async def test_clients_that_disconnect_open_no_breaker(world: World) -> None:
    engines = await world.engines()
    router = await world.router(one_llama(world.redis.url, engines, LONG_COOLDOWN))
    for n in range(4):
        before = await engines.chat.stats(in_flight=0)
        async with open_stream(router, f"{n}? [[sim:stall after=1]]"):
            await engines.chat.stats(started=before["started"] + 1, in_flight=1)
    await engines.chat.stats(in_flight=0)
    assert await state(router) == "closed"


@scenario
async def test_streams_that_break_after_their_first_token_open_the_breaker(world: World) -> None:
    engines = await world.engines()
    router = await world.router(two_llamas(world.redis.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "drop", "after": 3})
    for _ in range(3):
        assert (await ask(router, stream=True)).headers["x-engine"] == "first"
    assert await state(router) == "open"


# -- all breakers open ------------------------------------------------------------------------------------------------


@scenario
async def test_with_all_breakers_open_the_response_is_503_with_the_time_until_the_first_is_half_open(
    world: World,
) -> None:
    engines = await world.engines()
    rest = LONG_COOLDOWN.replace("1h", "40s")
    router = await world.router(one_llama(world.redis.url, engines, rest))
    await engines.chat.set_faults(FAILS)
    assert (await ask(router)).status_code == 502, "three attempts, which open it"
    before = await received(engines)
    answer = await ask(router)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "circuit_open")
    assert 30 <= int(answer.headers["retry-after"]) <= 40
    assert await received(engines) == before
    ready = await router.http.get("/readyz")
    assert (ready.status_code, "retry-after" in ready.headers) == (503, True)


# -- pressure ---------------------------------------------------------------------------------------------------------


@scenario
async def test_a_full_kv_cache_opens_the_breaker_until_usage_falls_below_the_lower_threshold(world: World) -> None:
    engines = await world.engines()
    router = await world.router(two_llamas(world.redis.url, engines, ""))
    assert (await ask(router)).headers["x-engine"] == "first"
    await engines.chat.set_faults({"fault": "kv", "usage": 0.88})
    await pass_time(PROBED, "open", router)
    assert (await ask(router)).headers["x-engine"] == "second"
    await engines.chat.set_faults({"fault": "kv", "usage": 0.79})
    await pass_time(PROBED, "open", router)
    await engines.chat.set_faults({"fault": "kv", "usage": 0.78})
    await pass_time(PROBED, "closed", router)
    await engines.chat.set_faults({"fault": "kv", "usage": 0.87})
    await pass_time(PROBED, "closed", router)
    assert (await ask(router)).headers["x-engine"] == "first"


@scenario
async def test_a_missing_metric_opens_no_breaker(world: World) -> None:
    engines = await world.engines()
    await engines.chat.set_faults({"fault": "kv", "metric": "missing"})
    router = await world.router(one_llama(world.redis.url, engines, ""))
    assert await state(router) == "closed"
    assert (await ask(router)).status_code == 200


@scenario
async def test_an_engine_that_a_reload_adds_has_the_breaker_that_another_router_has_opened(world: World) -> None:
    engines = await world.engines()
    text = two_llamas(world.redis.url, engines, LONG_COOLDOWN)
    only_second = router_config(world.redis.url, {"second": ("llama", "any", engines.code.url)}, rest=LONG_COOLDOWN)
    one, other = await world.router(text), await world.router(only_second)
    await engines.chat.set_faults(FAILS)
    for _ in range(3):
        await ask(one)
    await pass_time(0.1, "open", one)
    await other.reload(text)
    await pass_time(0.1, "open", other)


@scenario
async def test_requests_from_before_a_reload_count_after_it_without_redis_too(world: World) -> None:
    engines = await world.engines()
    text = one_llama(world.redis.url, engines, LONG_COOLDOWN)
    router = await world.router(text)
    world.redis.stop()
    await engines.chat.set_faults({"fault": "drop", "after": 3}, {"fault": "tps", "rate": 2})
    streams = [asyncio.create_task(ask(router, f"{number}?", stream=True)) for number in range(3)]
    await engines.chat.stats(in_flight=3)
    await router.reload(text.replace('"llama-alias"', '"other-alias"'))
    assert await state(router) == "closed"
    await asyncio.gather(*streams)
    assert await state(router) == "open"


@scenario
async def test_a_reload_sets_when_a_breaker_opens_and_keeps_those_that_are_open(world: World) -> None:
    engines = await world.engines()
    text = two_llamas(world.redis.url, engines, LONG_COOLDOWN)
    router = await world.router(text)
    await engines.chat.set_faults(FAILS)
    await ask(router)
    await router.reload(text.replace("failures = 3", "failures = 2"))
    assert await state(router) == "closed"
    await ask(router)
    assert await state(router) == "open"
    await router.reload(text)
    assert await state(router) == "open"
    await router.reload(text.replace("redis:6379", "redis:6379/0"))
    assert await state(router) == "open"
