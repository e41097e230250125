"""Streams that another engine continues, as the clients' own libraries read them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
import pytest_asyncio

from tests.support.client_programs import python_command, run_client
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "Tell me about the sea."
# What goes on by token ids has no text in which this could match.
DROP = {"fault": "drop", "after": 10, "match": QUESTION}

ANTHROPIC = """
import anthropic
client = anthropic.Anthropic(base_url="{url}", api_key="none", max_retries=0)
try:
    with client.messages.stream(
        model="llama", messages=[dict(role="user", content="{question}")], max_tokens=200
    ) as stream:
        for text in stream.text_stream:
            print(repr(text))
except anthropic.APIStatusError as error:
    print(error.message)
"""


class Deployment(NamedTuple):
    """A router, and the address of one of its two engines."""

    router: RouterServer
    engine: str


@pytest_asyncio.fixture(loop_scope="session")
async def deployment(redis_server: RedisServer, redis: Any, make_router: MakeRouter) -> AsyncIterator[Deployment]:
    async with SimulatedEngine(model=LLAMA) as first, SimulatedEngine(model=LLAMA) as second:
        engines = {"a": ("llama", "any", first.url), "b": ("llama", "any", second.url)}
        router = await make_router(router_config(redis_server.url, engines))
        await first.set_faults(DROP)
        await second.set_faults(DROP)
        yield Deployment(router, first.url)


async def unbroken(deployment: Deployment, path: str, **body: Any) -> dict[str, Any]:
    """The answer of an engine alone, without the fault."""
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as http:
        faults = f"{deployment.engine}/_sim/faults"
        await http.delete(faults)
        answer = await http.post(deployment.engine + path, json={"model": LLAMA, **body})
        await http.post(faults, json=[DROP])
    parsed: dict[str, Any] = answer.json()
    return parsed


def openai_client(deployment: Deployment) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{deployment.router.url}/v1", api_key="none", max_retries=0)


async def test_openais_client_reads_one_chat(deployment: Deployment) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    expected = await unbroken(deployment, "/v1/chat/completions", messages=messages, temperature=0)
    async with openai_client(deployment) as client:
        stream = client.chat.completions.stream(
            model="llama", messages=messages, temperature=0, stream_options={"include_usage": True}
        )
        async with stream as events:
            chunks = [event.chunk async for event in events if event.type == "chunk"]
            whole = await events.get_final_completion()
    assert whole.choices[0].message.content == expected["choices"][0]["message"]["content"]
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == expected["usage"]["completion_tokens"] > 10
    assert whole.usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert {chunk.id for chunk in chunks} == {whole.id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.created for chunk in chunks} == {whole.created}
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices].count("assistant") == 1
    metrics = await deployment.router.metrics()
    assert sum(count for name, count in metrics.items() if name.startswith("llm_continuations_total")) == 1


async def test_openais_client_reads_one_completion(deployment: Deployment) -> None:
    expected = await unbroken(deployment, "/v1/completions", prompt=QUESTION, max_tokens=60, temperature=0)
    async with openai_client(deployment) as client:
        stream = await client.completions.create(
            model="llama", prompt=QUESTION, max_tokens=60, temperature=0, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected["choices"][0]["text"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1


async def test_anthropics_client_gets_an_error_after_what_was_said(deployment: Deployment, tmp_path: Path) -> None:
    """There is no way to continue a message of /v1/messages."""
    program = ANTHROPIC.format(url=deployment.router.url, question=QUESTION)
    *said, error = (await run_client(python_command(program), tmp_path)).splitlines()
    assert said
    assert "interrupted" in error
