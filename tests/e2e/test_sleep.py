"""Sleep and wake of a real vLLM engine, and that the simulator answers as it does."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e.vllm_process_tree import VllmProcessTree
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

SERVED = "tiny"

CALLS = [
    ("GET", "/is_sleeping"),
    ("POST", "/is_sleeping"),
    ("GET", "/sleep"),
    ("POST", "/sleep?level=3"),
    ("POST", "/sleep?level=-1"),
    ("POST", "/sleep?level=x"),
    ("POST", "/sleep?mode=foo"),
    ("POST", "/sleep?level=0"),
    ("GET", "/is_sleeping"),
    ("GET", "/health"),
    ("POST", "/wake_up?tags=scheduling"),
    ("GET", "/is_sleeping"),
    ("POST", "/sleep"),
    ("POST", "/sleep?level=1&mode=wait"),
    ("POST", "/wake_up?tags=weights"),
    ("GET", "/is_sleeping"),
    ("POST", "/wake_up?tags=kv_cache"),
    ("POST", "/sleep?level=2&mode=keep"),
    ("POST", "/wake_up"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
]


@pytest_asyncio.fixture(loop_scope="session")
async def engine(replicas: VllmProcessTree) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(f"http://127.0.0.1:{replicas.ports['two']}") as client:
        yield client
        (await client.post("/wake_up")).raise_for_status()


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=60)


async def states(client: httpx.AsyncClient) -> dict[str, float]:
    page = (await client.get("/metrics")).text
    found = re.findall(r'vllm:engine_sleep_state{.*?sleep_state="(\w+)"} (\S+)', page)
    return {name: float(value) for name, value in found}


async def called(client: httpx.AsyncClient) -> list[tuple[Any, ...]]:
    answers = []
    for method, path in CALLS:
        answer = await client.request(method, path)
        content = answer.json() if answer.content else None
        answers.append((method, path, answer.status_code, answer.headers.get("allow"), content, await states(client)))
    return answers


def ask(client: httpx.AsyncClient, max_tokens: int) -> "asyncio.Task[httpx.Response]":
    body = {"model": SERVED, "prompt": "The sea", "max_tokens": max_tokens, "ignore_eos": True}
    return asyncio.ensure_future(client.post("/v1/completions", json=body))


async def test_the_simulator_answers_as_vllm_does(engine: httpx.AsyncClient) -> None:
    async with SimulatedEngine(SERVED, server_dev_mode=True) as simulated, client_of(simulated.url) as simulator:
        assert await called(simulator) == await called(engine)


async def test_a_request_at_a_sleeping_engine_is_answered_after_the_wake(engine: httpx.AsyncClient) -> None:
    (await engine.post("/sleep?level=1&mode=wait")).raise_for_status()
    request = ask(engine, 4)
    assert (await asyncio.wait([request], timeout=1))[1], "it waits"
    (await engine.post("/wake_up")).raise_for_status()
    assert (await request).status_code == 200


async def test_an_aborted_request_ends_with_the_reason_abort(engine: httpx.AsyncClient, slow_steps: Path) -> None:
    async def runs() -> bool:
        return 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in (await engine.get("/metrics")).text

    slow_steps.touch()
    try:
        request = ask(engine, 2000)
        await eventually(runs)
        (await engine.post("/sleep")).raise_for_status()
        answer = (await request).json()
    finally:
        slow_steps.unlink()
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["usage"]["completion_tokens"] < 2000
