"""Budgets of tokens and GPU seconds by day and month, counted across all routers and workers."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.core.cache.redis_keys import budget_key
from router.core.quota.budget import DAY, month_of
from router.settings import parse
from tests.support.limited_tenants import ACME, FREE, LimitedConfig, ask, limited_config
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, chat_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = budget_key("acme")


@pytest.fixture
def limited(redis_server: RedisServer, engines: EngineSet) -> LimitedConfig:
    return limited_config(redis_server, engines)


async def counted(redis: Any) -> dict[str, int]:
    return {name: int(value) for name, value in (await redis.hgetall(KEY)).items()}


def tokens(answers: list[httpx.Response]) -> int:
    return sum(answer.json()["usage"]["total_tokens"] for answer in answers)


def assert_refused(answer: httpx.Response, budget: str) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
    assert budget in error["message"]
    assert "resets at 2" in error["message"]
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(("name", "what"), [("tokens_per_day", "tokens per day"), ("tokens_per_month", "per month")])
async def test_a_tenant_over_budget_is_refused_at_every_router(
    make_router: MakeRouter, limited: LimitedConfig, redis: Any, engines: EngineSet, name: str, what: str
) -> None:
    routers = [await make_router(limited(f"{name} = 1\nrequests_per_minute = 50")) for _ in range(2)]
    assert (await ask(routers[0])).status_code == 200
    await eventually(lambda: redis.exists(KEY))
    before = (await engines.chat.stats())["received"]
    for router in routers:
        for stream in (False, True):
            answer = await ask(router, stream=stream)
            assert_refused(answer, what)
            assert "x-cache" not in answer.headers, "nothing is looked up, as with rates"
            assert answer.headers["x-ratelimit-limit-requests"] == "50"
    assert (await engines.chat.stats())["received"] == before
    assert (await routers[0].metrics())[f'llm_requests_rejected_total{{reason="{name}_budget"}}'] == 2
    assert (await routers[1].chat("The sea?", headers=FREE)).status_code == 200, "other tenants have their own"
    assert await redis.exists(budget_key("free")) == 0


@pytest_asyncio.fixture(loop_scope="session")
async def two_workers(tmp_path: Path, limited: LimitedConfig) -> AsyncIterator[RouterProcess]:
    text = limited("tokens_per_day = 2000\ntokens_per_month = 100000").replace("[router]", "[router]\nworkers = 2")
    served = RouterProcess(tmp_path, text)
    served.start()
    try:
        await served.wait_until_ready()
        yield served
    finally:
        served.kill()


async def test_two_routers_and_two_workers_spend_one_budget_at_once(
    two_workers: RouterProcess, make_router: MakeRouter, limited: LimitedConfig, redis: Any
) -> None:
    other = await make_router(limited("tokens_per_day = 2000\ntokens_per_month = 100000"))
    admitted: list[httpx.Response] = []
    async with http_client(two_workers.url) as http:

        async def send(client: httpx.AsyncClient, prompt: str) -> httpx.Response:
            return await client.post(
                "/v1/chat/completions", json=chat_body(prompt), headers=ACME | {"connection": "close"}
            )

        async def settled() -> bool:
            return (await counted(redis))["day_tokens"] == tokens(admitted)

        for round_ in range(100):
            prompts = [f"What is {round_} times {n}?" for n in range(6)]
            answers = await asyncio.gather(*(send((http, other.http)[n % 2], p) for n, p in enumerate(prompts)))
            new = [answer for answer in answers if answer.status_code == 200]
            admitted.extend(new)
            await eventually(settled)
            if len(new) < len(prompts):
                break
        total = tokens(admitted)
        assert total >= 2000
        assert total - tokens(admitted[-12:]) < 2000, "it was used up in the last rounds"
        for n in range(8):
            assert_refused(await send((http, other.http)[n % 2], f"What is {n}?"), "2000 tokens per day")
    found = await counted(redis)
    assert found["day_tokens"] == found["month_tokens"] == total


async def test_gpu_seconds_are_counted_and_hits_cost_none(
    make_router: MakeRouter, limited: LimitedConfig, engines: EngineSet, redis: Any
) -> None:
    router = await make_router(limited("gpu_seconds_per_day = 1"))
    await engines.chat.set_faults({"fault": "ttft", "ms": 600})
    assert (await ask(router)).headers["x-cache"] == "MISS"

    async def settled() -> int:
        return (await counted(redis)).get("day_gpu_ms", 0)

    spent = await eventually(settled)
    assert 600 <= spent < 1000
    for _ in range(4):
        assert (await ask(router)).headers["x-cache"] == "HIT"
    assert await settled() == spent
    assert (await ask(router, "The land?")).status_code == 200

    async def is_refused() -> bool:
        return (await ask(router)).status_code == 429

    await eventually(is_refused)
    assert_refused(await ask(router), "1 GPU seconds per day")


async def test_a_budget_starts_anew_when_the_clock_of_redis_passes_midnight_and_not_if_it_jumps_back(
    make_router: MakeRouter, limited: LimitedConfig, redis: Any
) -> None:
    router = await make_router(limited("tokens_per_day = 100"))
    today = int((await redis.time())[0]) // DAY
    # What there is if Redis' clock has jumped over midnight since the budget was used up: first ahead, then back.
    used_up = {"month": 0, "day_tokens": 100, "day_gpu_ms": 0, "month_tokens": 100, "month_gpu_ms": 0}
    await redis.hset(KEY, mapping={**used_up, "day": today + 1})
    assert (await ask(router)).status_code == 429, "tomorrow's budget is the one that is used up"
    await redis.hset(KEY, "day", today)
    assert (await ask(router)).status_code == 429
    await redis.hset(KEY, "day", today - 1)
    assert (await ask(router)).status_code == 200
    found = await eventually(lambda: _spent_today(redis, today))
    assert found["day_tokens"] < 100


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "1e300", "x", ""])
@pytest.mark.parametrize("field", ["day", "month", "day_tokens"])
async def test_a_counter_that_is_no_number_is_replaced(
    make_router: MakeRouter, limited: LimitedConfig, redis: Any, field: str, value: str
) -> None:
    router = await make_router(limited("tokens_per_day = 1\ntokens_per_month = 100000"))
    today = int((await redis.time())[0]) // DAY
    ours = {"day": today, "month": month_of(today), "day_tokens": 0, "day_gpu_ms": 0, "month_tokens": 0}
    await redis.hset(KEY, mapping={**ours, "month_gpu_ms": 0, field: value})
    assert (await ask(router)).status_code == 200

    async def is_replaced() -> bool:
        return str(await redis.hget(KEY, field)).isdecimal()

    await eventually(is_replaced)
    assert_refused(await ask(router), "1 tokens per day")


async def _spent_today(redis: Any, today: int) -> dict[str, int] | None:
    found = await counted(redis)
    return found if found["day"] >= today else None


async def test_what_is_used_while_redis_is_down_is_added_when_it_is_back(
    own_redis: RedisServer, make_router: MakeRouter, limited: LimitedConfig
) -> None:
    await own_redis.start()
    router = await make_router(limited("tokens_per_month = 100000", own_redis))
    own_redis.kill()
    answers = [await ask(router, f"Question {number}") for number in range(3)]
    assert {answer.headers["x-cache"] for answer in answers} == {"BYPASS"}
    await own_redis.start()

    async def added() -> bool:
        return int(await own_redis.command("HGET", KEY, "month_tokens") or 0) == tokens(answers)

    await eventually(added)


async def test_a_reload_while_redis_is_down_gives_no_new_budget_and_loses_nothing(
    own_redis: RedisServer, make_router: MakeRouter, limited: LimitedConfig
) -> None:
    await own_redis.start()
    text = limited("tokens_per_day = 200", own_redis)
    router = await make_router(text)
    own_redis.kill()
    answers = [await ask(router)]
    while tokens(answers) < 200:
        answers.append(await ask(router, f"Question {len(answers)}"))
    await router.application.reload(parse(text, {}))
    assert_refused(await ask(router), "200 tokens per day")
    await own_redis.start()

    async def added() -> bool:
        return int(await own_redis.command("HGET", KEY, "day_tokens") or 0) == tokens(answers)

    await eventually(added)


async def test_with_a_frozen_redis_a_budget_that_is_used_up_stays_so(
    make_router: MakeRouter, limited: LimitedConfig, own_redis: RedisServer
) -> None:
    await own_redis.start()
    router = await make_router(limited("tokens_per_day = 1", own_redis).replace('"2500ms"', '"100ms"'))
    assert (await ask(router)).status_code == 200
    assert_refused(await ask(router), "1 tokens per day")
    own_redis.freeze()
    started = time.monotonic()
    for number in range(3):
        assert_refused(await ask(router, f"{number}?"), "1 tokens per day")
    assert time.monotonic() - started < 5
    own_redis.thaw()
