"""Checks, warm-ups and replays at a simulated engine."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from engines.switch.engine_client import EngineHttp
from engines.switch.replay import replay, warm_up
from engines.switch.request import SwitchFailedError
from router.shared.prompts.recent_prompts import RecentPrompt
from tests.support.ports import free_port
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as http:
        yield http


def prompt(text: str, **fields: Any) -> RecentPrompt:
    body = {"model": "of another engine", "messages": [{"role": "user", "content": text}], "stream": True, **fields}
    return RecentPrompt("/v1/chat/completions", msgspec.Raw(json.dumps(body).encode()))


async def test_an_engine_that_serves_the_model_passes_the_check_and_is_idle(client: httpx.AsyncClient) -> None:
    async with SimulatedEngine("llama") as simulated:
        engine = EngineHttp(client, simulated.url, "llama")
        await engine.check()
        assert await engine.is_healthy()
        assert await engine.running_requests() == 0


async def test_an_engine_for_embeddings_passes_the_check(client: httpx.AsyncClient) -> None:
    async with SimulatedEngine("embedder", runner="pooling") as simulated:
        await EngineHttp(client, simulated.url, "embedder").check()


async def test_an_engine_that_serves_another_model_or_fails_does_not_pass(client: httpx.AsyncClient) -> None:
    async with SimulatedEngine("llama") as simulated:
        with pytest.raises(SwitchFailedError, match="serves llama"):
            await EngineHttp(client, simulated.url, "mistral").check()
        await simulated.set_faults({"fault": "status", "code": 500})
        with pytest.raises(SwitchFailedError, match="replies 500"):
            await EngineHttp(client, simulated.url, "llama").check()


async def test_an_engine_that_is_gone_fails_every_question_and_raises_nothing_else(client: httpx.AsyncClient) -> None:
    engine = EngineHttp(client, f"http://127.0.0.1:{free_port()}", "llama")
    with pytest.raises(SwitchFailedError):
        await engine.check()
    assert not await engine.is_healthy()
    assert await engine.running_requests() is None
    assert await warm_up(engine, [prompt("a")]) == 0
    (answer,) = await replay(engine, [prompt("a")])
    assert answer.error is not None


async def test_a_warm_up_sends_each_prompt_once_for_one_token(client: httpx.AsyncClient) -> None:
    async with SimulatedEngine("llama") as simulated:
        engine = EngineHttp(client, simulated.url, "llama")
        assert await warm_up(engine, [prompt("a"), prompt("b"), prompt("c", temperature=-1)]) == 2
        assert (await simulated.stats())["received"] == 3
        assert await simulated.metric("generation_tokens_total") == 2


async def test_a_warm_up_ends_in_time(client: httpx.AsyncClient) -> None:
    async with SimulatedEngine("llama") as simulated:
        await simulated.set_faults({"fault": "stall", "after": 0})
        engine = EngineHttp(client, simulated.url, "llama")
        assert await warm_up(engine, [prompt(str(number)) for number in range(10)], timeout=0.2) == 0


async def test_a_replay_gives_text_tokens_and_seconds_of_each_answer(client: httpx.AsyncClient) -> None:
    async with SimulatedEngine("llama") as simulated:
        engine = EngineHttp(client, simulated.url, "llama")
        good, bad = await replay(engine, [prompt("a", max_tokens=5), prompt("b", temperature=-1)])
    assert good.text
    assert (good.tokens, good.error) == (5, None)
    assert good.seconds > 0
    assert bad.error == "status 400"
