"""OpenAI's Python client against the router."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.support.router_server import EngineSet, RouterServer
from tests.support.waiting import collect

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO: Any = [{"role": "user", "content": "Tell me about the sea."}]
LOOK: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"where": {"type": "string"}}}},
}


@pytest_asyncio.fixture(loop_scope="session")
async def client(router: RouterServer) -> AsyncIterator[AsyncOpenAI]:
    # OpenAI's default HTTP client loads the machine's certificates each time.
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    async with AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


async def test_a_chat_works_twice(client: AsyncOpenAI) -> None:
    texts = []
    for cache in ("MISS", "HIT"):
        raw = await client.chat.completions.with_raw_response.create(model="llama", messages=HELLO)
        assert raw.headers["x-cache"] == cache
        assert raw.headers["x-cache-key"].startswith("rh:1:default:llama:")
        completion = raw.parse()
        assert completion.usage is not None
        assert completion.choices[0].finish_reason == "stop"
        texts.append(completion.choices[0].message.content)
    assert texts[0] == texts[1]
    assert texts[0]


async def test_a_streamed_chat_works_twice(client: AsyncOpenAI) -> None:
    texts, usages = [], []
    for _ in range(2):
        stream = await client.chat.completions.create(
            model="llama", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        text = ""
        async for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            else:
                usages.append(chunk.usage)
        texts.append(text)
    assert texts[0] == texts[1] != ""
    assert len(usages) == 2
    assert usages[0] == usages[1]
    response = await client.chat.completions.create(model="llama", messages=HELLO)
    assert response.choices[0].message.content == texts[0]


@pytest.mark.parametrize("first", [False, True], ids=["kept-as-json", "kept-as-stream"])
async def test_a_tool_call_survives_both_conversions(client: AsyncOpenAI, first: bool) -> None:
    calls = []
    for stream in (first, not first, first):
        if stream:
            async with client.chat.completions.stream(
                model="llama", messages=HELLO, tools=[LOOK], tool_choice="required"
            ) as events:
                completion: Any = await events.get_final_completion()
        else:
            completion = await client.chat.completions.create(
                model="llama", messages=HELLO, tools=[LOOK], tool_choice="required"
            )
        calls.append([(c.id, c.function.name, c.function.arguments) for c in completion.choices[0].message.tool_calls])
    assert calls[0] == calls[1] == calls[2]
    assert calls[0][0][1] == "look"


async def test_completions_work(client: AsyncOpenAI) -> None:
    response = await client.completions.create(model="llama", prompt="The sea")
    streamed = await client.completions.create(model="llama", prompt="The sea", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in streamed]) == response.choices[0].text != ""


async def test_models_are_listed(client: AsyncOpenAI) -> None:
    assert "auto" in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve("llama")).id == "llama"


async def test_a_bad_request_raises_its_class(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(model="llama", messages=[])
    assert raised.value.param == "messages"
    assert raised.value.request_id
    too_long: Any = [{"role": "user", "content": "far too long " * 5000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await client.chat.completions.create(model="llama", messages=too_long, stream=True)


async def test_an_unknown_model_raises_its_class(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize("fault", [{"fault": "error", "after": 3}, {"fault": "drop", "after": 3}])
async def test_a_stream_that_breaks_raises_instead_of_ending_normally(
    client: AsyncOpenAI, engines: EngineSet, fault: dict[str, Any]
) -> None:
    for engine in (engines.chat, engines.code):
        await engine.set_faults(fault)
    stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
    seen: list[Any] = []
    with pytest.raises(openai.APIError, match="was interrupted"):
        await collect(stream, seen)
    assert len(seen) > 1


async def test_an_overloaded_engine_raises_an_error_that_the_client_retries(
    client: AsyncOpenAI, engines: EngineSet
) -> None:
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "status", "code": 503, "times": 2})  # the router makes three attempts
    with pytest.raises(openai.InternalServerError) as raised:
        await client.chat.completions.create(model="llama", messages=HELLO)
    assert raised.value.status_code == 503
    retrying = client.with_options(max_retries=2)
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "status", "code": 503, "times": 1})
    assert (await retrying.chat.completions.create(model="llama", messages=HELLO)).choices[0].message.content
