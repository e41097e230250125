"""Budgets of tokens and GPU seconds by day and month, counted across all routers."""

import time
from typing import Any

import httpx
import pytest

from router.core.cache.redis_keys import budget_key
from router.core.quota.budget import DAY
from tests.support.limited_tenants import FREE, ask, tenant_tables
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines
from tests.world.scenario import World, scenario

KEY = budget_key("acme")


def limited(world: World, engines: WorldEngines, limits: str) -> str:
    return router_config(world.redis.url, engines.as_config(), rest=tenant_tables(limits))


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
@scenario
async def test_a_tenant_over_budget_is_refused_at_every_router(world: World, name: str, what: str) -> None:
    engines = await world.engines()
    redis = world.redis.client
    routers = [await world.router(limited(world, engines, f"{name} = 1\nrequests_per_minute = 50")) for _ in range(2)]
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
    assert (await routers[0].metrics())[f'llm_requests_rejected_total{{reason="{name}_budget",tenant="acme"}}'] == 2
    assert (await routers[1].chat("The sea?", headers=FREE)).status_code == 200, "other tenants have their own"
    assert await redis.exists(budget_key("free")) == 0


@scenario
async def test_gpu_seconds_are_counted_and_hits_cost_none(world: World) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await world.router(limited(world, engines, "gpu_seconds_per_day = 1"))
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


@scenario
async def test_a_budget_starts_anew_when_the_clock_of_redis_passes_midnight_and_not_if_it_jumps_back(
    world: World,
) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await world.router(limited(world, engines, "tokens_per_day = 100"))
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


async def _spent_today(redis: Any, today: int) -> dict[str, int] | None:
    found = await counted(redis)
    return found if found["day"] >= today else None


@scenario
async def test_what_is_used_while_redis_is_down_is_added_when_it_is_back(world: World) -> None:
    engines = await world.engines()
    router = await world.router(limited(world, engines, "tokens_per_month = 100000"))
    world.redis.stop()
    answers = [await ask(router, f"Question {number}") for number in range(3)]
    assert {answer.headers["x-cache"] for answer in answers} == {"BYPASS"}
    world.redis.start()

    async def added() -> bool:
        return int(await world.redis.client.hget(KEY, "month_tokens") or 0) == tokens(answers)

    await eventually(added)


@scenario
async def test_a_reload_while_redis_is_down_gives_no_new_budget_and_loses_nothing(world: World) -> None:
    engines = await world.engines()
    text = limited(world, engines, "tokens_per_day = 200")
    router = await world.router(text)
    world.redis.stop()
    answers = [await ask(router)]
    while tokens(answers) < 200:
        answers.append(await ask(router, f"Question {len(answers)}"))
    await router.reload(text)
    assert_refused(await ask(router), "200 tokens per day")
    world.redis.start()

    async def added() -> bool:
        return int(await world.redis.client.hget(KEY, "day_tokens") or 0) == tokens(answers)

    await eventually(added)


@scenario
async def test_with_a_frozen_redis_a_budget_that_is_used_up_stays_so(world: World) -> None:
    engines = await world.engines()
    router = await world.router(limited(world, engines, "tokens_per_day = 1").replace('"2500ms"', '"100ms"'))
    assert (await ask(router)).status_code == 200
    assert_refused(await ask(router), "1 tokens per day")
    world.redis.freeze()
    started = time.monotonic()
    for number in range(3):
        assert_refused(await ask(router, f"{number}?"), "1 tokens per day")
    assert time.monotonic() - started < 5
    world.redis.thaw()
