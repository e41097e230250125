"""The bytes of an engine's response, and when the client has them; tests/world has what else passes through."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.support.router_server import LLAMA, EngineSet, RouterServer, chat_body
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_delta_text, chat_frame, parse_events
from tests.support.waiting import TEST_TIMEOUT, read_until

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "Tell me about the sea at night."


async def last_request(engine: SimulatedEngine) -> dict[str, Any]:
    """The last request that the engine received."""
    request: dict[str, Any] = (await engine.stats())["requests"][-1]
    return request


async def ask_engine(engine: SimulatedEngine, body: dict[str, Any]) -> bytes:
    """The engine's response to the same request id as in its last request."""
    same = (await last_request(engine))["headers"]["x-request-id"]
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as http:
        answer = await http.post(f"{engine.url}/v1/chat/completions", json=body, headers={"x-request-id": same})
    return _undated(answer.content)


def _undated(answer: bytes) -> bytes:
    return re.sub(rb'"created": ?[0-9]+', b'"created":0', answer)


async def test_the_bytes_of_a_json_response_are_the_engines(router: RouterServer, engines: EngineSet) -> None:
    answer = await router.chat(CHAT, logprobs=True, top_logprobs=2)
    expected = await ask_engine(engines.chat, chat_body(CHAT, model=LLAMA, logprobs=True, top_logprobs=2))
    assert _undated(answer.content) == expected


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
async def test_the_bytes_of_a_stream_are_the_engines_wherever_they_were_cut(
    router: RouterServer, engines: EngineSet, size: int
) -> None:
    prompt = f"{CHAT} [[sim:chunks bytes={size}]]"
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await router.chat(prompt, **options)
    assert _undated(answer.content) == await ask_engine(engines.chat, chat_body(prompt, model=LLAMA, **options))
    assert answer.content.endswith(DONE_FRAME)


async def test_the_first_token_is_not_delayed(router: RouterServer, engines: EngineSet) -> None:
    before = (await engines.chat.stats())["aborted"]
    body = chat_body(f"{CHAT} [[sim:stall after=1]]", stream=True)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        stream = answer.aiter_bytes()
        data = await read_until(stream, lambda data: b'"content":"' in data.replace(b'"content":""', b""))
        assert chat_delta_text(parse_events(data))
        assert (await engines.chat.stats())["aborted"] == before, "the client has a token while the engine stalls"
    await engines.chat.stats(aborted=before + 1, in_flight=0)


async def test_every_event_is_forwarded_as_soon_as_the_engine_has_sent_it(scripted: Any) -> None:
    pieces = [
        ROLE_FRAME,
        *(chat_frame(content=f"{n} ") for n in range(3)),
        b": ping\n\n",
        chat_frame(content="", finish="stop"),
    ]
    router, engine = await scripted(*pieces, hold=True)
    async with router.http.stream("POST", "/v1/chat/completions", json=chat_body(CHAT, stream=True)) as answer:
        stream = answer.aiter_bytes()
        assert await read_until(stream, lambda data: len(data) >= len(b"".join(pieces))) == b"".join(pieces)
        assert not engine.client_disconnected.is_set()
    await asyncio.wait_for(engine.client_disconnected.wait(), TEST_TIMEOUT)
