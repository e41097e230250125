"""What responses say of the prompt tokens that the prefix cache held."""

import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from tests.support.http_exchange import send_request
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = count()
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(enable_prompt_tokens_details=True) as running:
        yield running


async def ask(engine: SimulatedEngine, path: str, text: str, *, stream: bool) -> dict[str, Any]:
    """The usage in the response; in a stream, that of its last event with one."""
    content = {"prompt": text} if path == "/v1/completions" else {"input": text} if path == "/v1/responses" else {}
    body: dict[str, Any] = {"model": engine.model, **(content or {"messages": [{"role": "user", "content": text}]})}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 4
    if stream:
        body["stream"] = True
        if path.endswith("completions"):
            body["stream_options"] = {"include_usage": True}
    headers = {"content-type": "application/json"}
    response = await send_request(engine.url, "POST", path, json.dumps(body), **headers)
    assert response.status == 200, response.body
    if not stream:
        parsed: dict[str, Any] = json.loads(response.body)
        return dict(parsed["usage"])
    events = [line.removeprefix(b"data: ") for line in response.body.splitlines() if line.startswith(b"data: {")]
    parsed = [event for event in map(json.loads, events) if '"usage": {' in json.dumps(event)][-1]
    return dict(parsed.get("response", parsed)["usage"])


def text_of(tokens: int) -> str:
    """A text that no other one begins with."""
    return f"{next(NUMBERS)}" + " word" * tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_usage_tells_cached_tokens_as_vllm_does(engine: SimulatedEngine, path: str, stream: bool) -> None:
    text = text_of(40)
    cold = await ask(engine, path, text, stream=stream)
    warm = await ask(engine, path, text, stream=stream)
    prompt = cold.get("prompt_tokens", warm.get("input_tokens", 0) + warm.get("cache_read_input_tokens", 0))
    full = prompt // 16 * 16
    assert full >= 32
    assert _caching(path, cold) == _expected(path, 0, full, stream=stream)
    assert _caching(path, warm) == _expected(path, full, 0, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_counts_input_tokens_without_those_of_the_cache(engine: SimulatedEngine, stream: bool) -> None:
    text = text_of(40)
    for _ in range(2):
        usage = await ask(engine, "/v1/messages", text, stream=stream)
        cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        assert (cached, 0 < usage["input_tokens"] < 16) == (48, True)


async def test_without_the_option_only_responses_tell_it() -> None:
    async with SimulatedEngine() as engine:
        for path in ENDPOINTS[:3]:
            for stream in (False, True):
                usage = await ask(engine, path, text_of(40), stream=stream)
                assert not usage.get("prompt_tokens_details"), path
                assert "cache_read_input_tokens" not in usage
        text = text_of(40)
        await ask(engine, "/v1/responses", text, stream=False)
        usage = await ask(engine, "/v1/responses", text, stream=False)
        assert usage["input_tokens_details"]["cached_tokens"] == 48


def _caching(path: str, usage: dict[str, Any]) -> Any:
    """The part of the usage that is about the cache."""
    if path == "/v1/messages":
        return usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    return usage["input_tokens_details" if path == "/v1/responses" else "prompt_tokens_details"]


def _expected(path: str, cached: int, created: int, *, stream: bool) -> Any:
    match path, stream:
        case "/v1/messages", _:
            return cached, created
        case "/v1/responses", _:
            turns: dict[str, list[int]] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
            return {"cached_tokens": cached, "cache_write_tokens": created, **turns}
        case "/v1/chat/completions", False:
            return {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": None}
        case "/v1/chat/completions", True:
            return {"cached_tokens": cached, "created_cache_tokens": created}
        case _, False:
            return {"cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None}
    return {"cached_tokens": cached}
