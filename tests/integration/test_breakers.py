"""Circuit breakers: shared by all routers, opened for good reasons only, and closed again."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.probe_helpers import wait_for_kv_usage
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

FAILS = {"fault": "status", "code": 500}
LONG_COOLDOWN = '[breaker]\nfailures = 3\ncooldown = "1h"'
SHORT_COOLDOWN = '[breaker]\nfailures = 3\ncooldown = "200ms"'


def two_llamas(redis_url: str, engines: EngineSet, rest: str) -> str:
    """`first` is preferred, as long as its breaker is closed."""
    first, second = ("llama", "chat", engines.chat.url), ("llama", "any", engines.code.url)
    return router_config(redis_url, {"first": first, "second": second}, rest=rest)


def one_llama(redis_url: str, engines: EngineSet, rest: str) -> str:
    return router_config(redis_url, {"first": ("llama", "chat", engines.chat.url)}, rest=rest)


async def ask(router: RouterServer, prompt: str = "The sea?", **fields: Any) -> httpx.Response:
    """A request that bypasses the cache; of a session, for which small differences of drafts do not count."""
    return await router.chat(prompt, headers={"cache-control": "no-store", "x-session-id": "one"}, **fields)


async def state(router: RouterServer, engine: str = "first") -> str:
    """The state in /healthz and /metrics; both are read again while it changes."""
    while True:
        before, metrics, after = await healthz_breakers(router), await router.metrics(), await healthz_breakers(router)
        if before == after:
            number = {"closed": 0, "half-open": 1, "open": 2}[before[engine]]
            assert metrics[f'roundhouse_breaker_state{{engine="{engine}"}}'] == number
            return before[engine]


async def healthz_breakers(router: RouterServer) -> dict[str, str]:
    page = (await router.http.get("/healthz")).json()
    states = {name: str(facts["breaker"]) for name, facts in page["engines"].items()}
    assert page["circuit_breaker_open"] is ("open" in states.values())
    return states


async def wait_for_state(wanted: str, *routers: RouterServer) -> None:
    async def are_all() -> bool:
        return [await state(router) for router in routers] == [wanted] * len(routers)

    await eventually(are_all)


async def received(engines: EngineSet) -> int:
    return int((await engines.chat.stats())["received"])


# -- failures, over two routers ---------------------------------------------------------------------------------------


async def test_a_breaker_that_one_router_opens_excludes_the_engine_for_all(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    text = two_llamas(redis_server.url, engines, LONG_COOLDOWN)
    one, other = await make_router(text), await make_router(text)
    await engines.chat.set_faults(FAILS)
    for _ in range(3):
        assert (await ask(one)).headers["x-engine"] == "second"
    await wait_for_state("open", one, other)
    before = await received(engines)
    for router in (one, other):
        assert (await ask(router)).headers["x-engine"] == "second"
        assert (await router.http.get("/healthz")).json()["status"] == "degraded"
        assert (await router.http.get("/readyz")).status_code == 200
    assert await received(engines) == before


async def test_one_request_of_all_routers_probes_a_half_open_breaker_and_closes_it_for_all(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    text = two_llamas(redis_server.url, engines, SHORT_COOLDOWN)
    one, other = await make_router(text), await make_router(text)
    await engines.chat.set_faults({**FAILS, "times": 3})
    for _ in range(3):
        await ask(one)
    await wait_for_state("half-open", one, other)
    await engines.chat.set_faults({"fault": "ttft", "ms": 500, "times": 1})
    before = await received(engines)
    answers = await asyncio.gather(*(ask(router, f"{n}?") for router in (one, other) for n in range(10)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert sorted(answer.headers["x-engine"] for answer in answers) == ["first"] + ["second"] * 19
    assert await received(engines) == before + 1
    await wait_for_state("closed", one, other)
    assert [(await ask(router)).headers["x-engine"] for router in (one, other)] == ["first", "first"]


async def test_a_failed_probe_opens_the_breaker_again_and_no_client_fails(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(two_llamas(redis_server.url, engines, SHORT_COOLDOWN))
    await engines.chat.set_faults(FAILS)
    before = await received(engines)
    for count in range(3):
        assert (await ask(router)).headers["x-engine"] == "second"
        assert await received(engines) == before + count + 1
    await wait_for_state("half-open", router)
    assert (await ask(router)).headers["x-engine"] == "second"
    assert await received(engines) == before + 4
    await wait_for_state("half-open", router)


async def test_without_redis_each_router_has_its_own_breakers(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    text = two_llamas(own_redis.url, engines, SHORT_COOLDOWN)
    one, other = await make_router(text), await make_router(text)
    await engines.chat.set_faults({**FAILS, "times": 3})
    for _ in range(3):
        assert (await ask(one)).headers["x-engine"] == "second"
    assert await state(other) == "closed"
    await wait_for_state("half-open", one)
    assert (await ask(one)).headers["x-engine"] == "first"
    assert await state(one) == "closed"


# -- what does not open a breaker -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 404, 408, 429])
async def test_a_4xx_opens_no_breaker(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet, code: int
) -> None:
    router = await make_router(one_llama(redis_server.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "status", "code": code})
    for _ in range(4):
        # After a 401, the engine gets no requests.
        expected = {404: (404,), 429: (503,), 401: (502, 503)}.get(code, (502,))
        assert (await ask(router)).status_code in expected
    assert await state(router) == "closed"


async def test_a_client_whose_requests_are_refused_opens_no_breaker(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(one_llama(redis_server.url, engines, LONG_COOLDOWN))
    for stream in (False, True) * 3:
        assert (await ask(router, "far too long " * 5000, stream=stream)).status_code == 400
    assert await state(router) == "closed"


async def test_an_engine_that_sends_retry_after_is_busy_and_not_failed(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(two_llamas(redis_server.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "status", "code": 503, "retry_after": "30", "times": 1})
    before = await received(engines)
    for _ in range(4):
        assert (await ask(router)).headers["x-engine"] == "second"
    assert await received(engines) == before + 1, "it was tried once, and not again before its Retry-After"
    assert await state(router) == "closed"


async def test_the_retry_after_of_engines_reaches_the_client(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(one_llama(redis_server.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "status", "code": 429, "retry_after": "7"})
    before = await received(engines)
    answer = await ask(router)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert await received(engines) == before + 1


async def test_clients_that_disconnect_open_no_breaker(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(one_llama(redis_server.url, engines, LONG_COOLDOWN))
    for n in range(4):
        before = await engines.chat.stats(in_flight=0)
        body = json.dumps(chat_body(f"{n}? [[sim:stall after=0]]", stream=True)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await engines.chat.stats(started=before["started"] + 1, in_flight=1)
        writer.close()
    await engines.chat.stats(in_flight=0)
    assert await state(router) == "closed"


async def test_streams_that_break_after_their_first_token_open_the_breaker(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(two_llamas(redis_server.url, engines, LONG_COOLDOWN))
    await engines.chat.set_faults({"fault": "drop", "after": 3})
    for _ in range(3):
        assert (await ask(router, stream=True)).headers["x-engine"] == "first"
    assert await state(router) == "open"


# -- all breakers open ------------------------------------------------------------------------------------------------


async def test_with_all_breakers_open_the_response_is_503_with_the_time_until_the_first_is_half_open(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    rest = LONG_COOLDOWN.replace("1h", "40s")
    router = await make_router(one_llama(redis_server.url, engines, rest))
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


async def test_a_full_kv_cache_opens_the_breaker_until_usage_falls_below_the_lower_threshold(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(two_llamas(redis_server.url, engines, ""))
    assert (await ask(router)).headers["x-engine"] == "first"
    await engines.chat.set_faults({"fault": "kv", "usage": 0.88})
    await wait_for_state("open", router)
    assert (await ask(router)).headers["x-engine"] == "second"
    await engines.chat.set_faults({"fault": "kv", "usage": 0.79})
    await wait_for_kv_usage(router, 0.79, "first")
    assert await state(router) == "open"
    await engines.chat.set_faults({"fault": "kv", "usage": 0.78})
    await wait_for_state("closed", router)
    await engines.chat.set_faults({"fault": "kv", "usage": 0.87})
    await wait_for_kv_usage(router, 0.87, "first")
    assert await state(router) == "closed"
    assert (await ask(router)).headers["x-engine"] == "first"


async def test_a_missing_metric_opens_no_breaker(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "kv", "metric": "missing"})
    router = await make_router(one_llama(redis_server.url, engines, ""))
    assert await state(router) == "closed"
    assert (await ask(router)).status_code == 200
