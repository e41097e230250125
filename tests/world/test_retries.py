"""Attempts that fail before the first token: which engine is tried next, when, and when retries stop."""

import asyncio
import time

import pytest

from router.core.resilience.retry_budget import RetryBudget
from tests.support.router_server import router_config
from tests.support.sse_answers import chat_text
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario

NEVER_OPENS = "[breaker]\nfailures = 1000000"


async def one_engine(world: World) -> tuple[WorldRouter, WorldEngine]:
    engine = await world.engine()
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=NEVER_OPENS)
    return await world.router(text), engine


async def attempts(router: WorldRouter) -> float:
    return sum(value for name, value in (await router.metrics()).items() if "llm_retries_total" in name)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("times", [1, 2])
@scenario
async def test_without_another_engine_the_same_one_is_retried(world: World, stream: bool, times: int) -> None:
    router, engine = await one_engine(world)
    await engine.set_faults({"fault": "status", "code": 500, "times": times})
    answer = await router.chat("The sea?", stream=stream)
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert chat_text(answer)
    assert await attempts(router) == times


@scenario
async def test_a_request_waits_for_the_retry_after_of_its_only_engine(world: World) -> None:
    router, engine = await one_engine(world)
    await engine.set_faults({"fault": "status", "code": 503, "retry_after": "1", "times": 1})
    started = time.perf_counter()
    assert (await router.chat("The sea?")).status_code == 200
    assert time.perf_counter() - started == pytest.approx(1, abs=0.2)


@scenario
async def test_after_the_first_token_nothing_is_retried(world: World) -> None:
    router, engine = await one_engine(world)
    await engine.set_faults({"fault": "drop", "after": 3})
    before = (await engine.stats())["received"]
    assert b'"error"' in (await router.chat("The sea?", stream=True)).content
    assert (await engine.stats())["received"] == before + 1


@scenario
async def test_when_every_attempt_fails_the_shared_retry_budget_limits_retries(world: World) -> None:
    engines = await world.engines()
    table = {"one": ("llama", "any", engines.chat.url), "two": ("llama", "any", engines.code.url)}
    router = await world.router(router_config(world.redis.url, table, rest=NEVER_OPENS))
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "status", "code": 500})
    requests, started = 150, time.perf_counter()

    async def ask(numbers: range) -> None:
        for number in numbers:
            assert (await router.chat(f"{number}?")).status_code == 502

    await asyncio.gather(*(ask(range(first, requests, 10)) for first in range(10)))
    took = time.perf_counter() - started
    most = RetryBudget.MIN_RETRIES_PER_SECOND * (RetryBudget.WINDOW + took) + RetryBudget.RETRY_RATIO * requests
    assert requests < await attempts(router) <= requests + most < 2.5 * requests
