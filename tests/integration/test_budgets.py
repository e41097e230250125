"""Budgets in Redis itself, and across workers. Their scenarios are in tests/world."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.core.cache.redis_keys import budget_key
from router.core.quota.budget import DAY, month_of
from tests.support.limited_tenants import ACME, ask, tenant_tables
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = budget_key("acme")
LIMITS = "tokens_per_day = 2000\ntokens_per_month = 100000"


@pytest.fixture
def limited(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=tenant_tables(LIMITS))


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


@pytest_asyncio.fixture(loop_scope="session")
async def two_workers(tmp_path: Path, limited: str) -> AsyncIterator[RouterProcess]:
    text = limited.replace("[router]", "[router]\nworkers = 2")
    served = RouterProcess(tmp_path, text)
    served.start()
    try:
        await served.wait_until_ready()
        yield served
    finally:
        served.kill()


async def test_two_routers_and_two_workers_spend_one_budget_at_once(
    two_workers: RouterProcess, make_router: MakeRouter, limited: str, redis: Any
) -> None:
    other = await make_router(limited)
    admitted: list[httpx.Response] = []
    async with http_client(two_workers.url) as http:

        async def send(client: httpx.AsyncClient, prompt: str) -> httpx.Response:
            return await client.post(
                "/v1/chat/completions", json=chat_body(prompt), headers=ACME | {"connection": "close"}
            )

        async def settled() -> bool:
            return (await counted(redis)).get("day_tokens") == tokens(admitted)

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


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "1e300", "x", ""])
@pytest.mark.parametrize("field", ["day", "month", "day_tokens"])
async def test_a_counter_that_is_no_number_is_replaced(
    make_router: MakeRouter, limited: str, redis: Any, field: str, value: str
) -> None:
    router = await make_router(limited.replace("= 2000", "= 1"))
    today = int((await redis.time())[0]) // DAY
    ours = {"day": today, "month": month_of(today), "day_tokens": 0, "day_gpu_ms": 0, "month_tokens": 0}
    await redis.hset(KEY, mapping={**ours, "month_gpu_ms": 0, field: value})
    assert (await ask(router)).status_code == 200

    async def is_replaced() -> bool:
        return str(await redis.hget(KEY, field)).isdecimal()

    await eventually(is_replaced)
    assert_refused(await ask(router), "1 tokens per day")
