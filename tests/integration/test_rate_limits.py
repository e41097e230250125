"""A tenant's rate limits over HTTP: 429 with Retry-After, counted across all routers."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, RateLimitError

from router.core.cache.redis_keys import limit_key
from tests.support.limited_tenants import ACME, FREE, LimitedConfig, ask, limited_config, tenant_tables
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, ScriptedRouter, chat_body
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = limit_key("acme")


@pytest.fixture
def limited(redis_server: RedisServer, engines: EngineSet) -> LimitedConfig:
    return limited_config(redis_server, engines)


def limit_headers(answer: httpx.Response, what: str) -> tuple[int, int, str]:
    """The limit, what remains, and the time until it is replenished."""
    named = [answer.headers[f"x-ratelimit-{which}-{what}"] for which in ("limit", "remaining", "reset")]
    return int(named[0]), int(named[1]), named[2]


# -- requests per minute ----------------------------------------------------------------------------------------------


async def test_every_response_to_a_tenant_with_limits_has_the_remaining_quota(
    make_router: MakeRouter, limited: LimitedConfig
) -> None:
    router = await make_router(limited("requests_per_minute = 6\ntokens_per_minute = 5000"))
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
async def test_a_request_over_the_limit_is_refused_with_the_time_to_wait(
    make_router: MakeRouter, limited: LimitedConfig, engines: EngineSet, stream: bool
) -> None:
    router = await make_router(limited("requests_per_minute = 2"))
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
    assert metrics['llm_requests_rejected_total{reason="requests_limit"}'] == 2
    assert (await router.chat("The sea?", headers=FREE)).status_code == 200, "other tenants have their own"


@pytest.mark.parametrize("stream", [False, True])
async def test_of_many_requests_at_two_routers_exactly_the_limit_is_admitted(
    make_router: MakeRouter, limited: LimitedConfig, stream: bool
) -> None:
    text = limited("requests_per_minute = 13")
    routers = [await make_router(text), await make_router(text)]
    answers = await asyncio.gather(*(ask(routers[n % 2], f"Sea {n % 5}?", stream=stream) for n in range(60)))
    assert [answer.status_code for answer in answers].count(200) == 13
    assert [answer.status_code for answer in answers].count(429) == 47


# -- tokens per minute ------------------------------------------------------------------------------------------------


async def test_generated_tokens_are_charged_and_hits_and_followers_are_free(
    scripted: ScriptedRouter, redis: Any
) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":70}}\n\n'
    pieces = (ROLE_FRAME + chat_frame(content="one"), chat_frame(content="", finish="stop") + usage + DONE_FRAME)
    router, engine = await scripted(*pieces, paced=True, rest=tenant_tables("tokens_per_minute = 150"))
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


async def test_a_tenant_in_debt_waits_until_its_level_is_positive(
    make_router: MakeRouter, limited: LimitedConfig
) -> None:
    router = await make_router(limited("tokens_per_minute = 40"))
    assert (await ask(router)).status_code == 200
    answer = await ask(router)
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "tokens"
    assert limit_headers(answer, "tokens")[:2] == (40, 0)
    assert int(answer.headers["retry-after"]) > 10
    assert (await router.metrics())['llm_requests_rejected_total{reason="tokens_limit"}'] == 1


async def test_a_client_that_disconnects_early_is_charged_for_the_tokens_so_far(scripted: ScriptedRouter) -> None:
    pieces = [chat_frame(content=f"word{n} ") for n in range(200)]
    router, engine = await scripted(
        ROLE_FRAME, *pieces, hold=True, rest=tenant_tables("tokens_per_minute = 150"), cache='on_abandon = "cancel"'
    )
    async with open_stream(router, "The sea?", headers=ACME) as answer:
        await answer.read_until_text("word199")
    await asyncio.wait_for(engine.client_disconnected.wait(), 5)

    async def is_refused() -> bool:
        return (await router.http.post("/v1/chat/completions", content=b"{}", headers=ACME)).status_code == 429

    await eventually(is_refused)


# -- concurrent requests ----------------------------------------------------------------------------------------------


async def test_the_concurrency_limit_holds_over_both_routers(
    make_router: MakeRouter, limited: LimitedConfig, engines: EngineSet
) -> None:
    text = limited("concurrent_requests = 3")
    routers = [await make_router(text), await make_router(text)]
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


async def test_an_error_and_a_hit_release_their_slot(
    make_router: MakeRouter, limited: LimitedConfig, engines: EngineSet
) -> None:
    router = await make_router(limited("concurrent_requests = 1"))
    for _ in range(3):
        assert (await router.post("/v1/chat/completions", b"{}", **ACME)).status_code == 400
        assert (await ask(router)).status_code == 200
        assert (await ask(router, stream=True)).status_code == 200


@pytest_asyncio.fixture(loop_scope="session")
async def other_process(tmp_path: Path, limited: LimitedConfig) -> AsyncIterator[RouterProcess]:
    """A router in its own process, where acme may have two concurrent requests."""
    served = RouterProcess(tmp_path, limited("concurrent_requests = 2"))
    served.start()
    try:
        await served.wait_until_ready()
        yield served
    finally:
        served.kill()


async def test_the_slots_of_a_killed_router_are_released(
    other_process: RouterProcess, make_router: MakeRouter, limited: LimitedConfig, engines: EngineSet
) -> None:
    router = await make_router(limited("concurrent_requests = 2"))
    await engines.chat.set_faults({"fault": "stall", "after": 3})
    async with http_client(other_process.url) as http:
        bodies = [chat_body(f"{n}?", stream=True) for n in range(2)]
        requests = [
            asyncio.ensure_future(http.post("/v1/chat/completions", json=body, headers=ACME)) for body in bodies
        ]
        await engines.chat.stats(in_flight=2)
        await engines.chat.clear_faults()
        assert (await ask(router)).status_code == 429
        started = time.monotonic()
        other_process.send_signal(signal.SIGKILL)
        await asyncio.wait(requests)
        assert all(isinstance(one.exception(), httpx.TransportError) for one in requests)

    async def is_admitted() -> bool:
        return (await ask(router)).status_code == 200

    await eventually(is_admitted)
    assert time.monotonic() - started < 6


# -- without Redis ----------------------------------------------------------------------------------------------------


async def test_a_tenant_without_limits_sends_nothing_to_redis(
    make_router: MakeRouter, limited: LimitedConfig, redis: Any
) -> None:
    router = await make_router(limited("requests_per_minute = 5"))
    await router.chat("The sea?", headers=FREE)
    assert await redis.keys("rh:1:limit:*") == []
    await ask(router)
    assert await redis.keys("rh:1:limit:*") == [KEY]


async def test_with_a_frozen_redis_requests_continue_and_limits_hold_in_each_router(
    make_router: MakeRouter, limited: LimitedConfig, own_redis: RedisServer
) -> None:
    await own_redis.start()
    text = limited("requests_per_minute = 4", own_redis).replace('"500ms"', '"100ms"')
    router = await make_router(text)
    assert (await ask(router)).status_code == 200
    own_redis.freeze()
    started = time.monotonic()
    answers = [await ask(router, f"{n}?") for n in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
    assert time.monotonic() - started < 5
    assert limit_headers(answers[0], "requests")[:2] == (4, 3), "the full limit, since the earlier usage is unknown"
    own_redis.thaw()

    async def is_admitted() -> bool:
        return (await ask(router)).status_code == 200

    await eventually(is_admitted)


# -- clients ----------------------------------------------------------------------------------------------------------


async def test_openai_python_waits_for_retry_after_and_then_succeeds(
    make_router: MakeRouter, limited: LimitedConfig, engines: EngineSet
) -> None:
    router = await make_router(limited("concurrent_requests = 1"))
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "stall", "after": 3, "match": "another"})
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    options: Any = {"base_url": f"{router.url}/v1", "api_key": "none", "http_client": http, "default_headers": ACME}
    body: Any = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}
    async with AsyncOpenAI(max_retries=0, **options) as client:
        async with open_stream(router, "another", headers=ACME):
            with pytest.raises(RateLimitError) as raised:
                await client.chat.completions.create(**body)
            assert raised.value.code == "rate_limit_exceeded"
            started = time.monotonic()
            patient = asyncio.ensure_future(client.with_options(max_retries=3).chat.completions.create(**body))

            async def refused_again() -> bool:
                name = 'llm_requests_rejected_total{reason="concurrent_requests_limit"}'
                return (await router.metrics()).get(name, 0) >= 2

            await eventually(refused_again)
        assert (await patient).choices[0].message.content
        assert time.monotonic() - started >= 0.9, "Retry-After is a second"
