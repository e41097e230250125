"""What clients can request of a simulated engine, over HTTP."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(model="org/tiny", served_model_name=("tiny", "alias"), draft="drafty") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(engine: SimulatedEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


async def chat(engine: SimulatedEngine, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}], **fields}
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        response = await http.post(f"{engine.url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


async def stream(engine: SimulatedEngine, path: str, **body: Any) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        response = await http.post(f"{engine.url}{path}", json={"stream": True, **body})
    assert response.status_code == 200, response.text
    *events, end, nothing = response.text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_openais_client_reads_a_response_and_its_stream_as_one_text(client: openai.AsyncOpenAI) -> None:
    conversation: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about rivers"}]
    response = await client.chat.completions.create(model="tiny", messages=conversation)
    streamed = await client.chat.completions.create(
        model="tiny",
        messages=conversation,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in streamed]
    assert response.usage is not None
    assert chunks[-1].usage is not None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        response.choices[0].message.content
    )
    assert chunks[-1].usage.completion_tokens == response.usage.completion_tokens
    assert response.choices[0].finish_reason == "stop"
    assert not (response.choices[0].message.content or "").isascii()


async def test_openais_client_completes_text(client: openai.AsyncOpenAI) -> None:
    response = await client.completions.create(model="alias", prompt="def f", max_tokens=20)
    streamed = await client.completions.create(model="alias", prompt="def f", max_tokens=20, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in streamed]) == response.choices[0].text
    assert response.model == "tiny", "the first name answers, as with vLLM"
    assert response.choices[0].finish_reason == "length"


async def test_openais_client_raises_on_an_error_frame(client: openai.AsyncOpenAI) -> None:
    conversation: list[ChatCompletionMessageParam] = [{"role": "user", "content": "[[sim:error after=2]]"}]
    streamed = await client.chat.completions.create(model="tiny", messages=conversation, stream=True)
    with pytest.raises(openai.APIError, match="EngineCore"):
        async for _ in streamed:
            pass


async def test_openais_client_lists_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny", "alias"]


async def test_responses_differ_between_prompts_models_and_parameters_and_not_otherwise(
    engine: SimulatedEngine,
) -> None:
    async def text_for(prompt: str, **fields: Any) -> str:
        return str((await chat(engine, prompt, **fields))["choices"][0]["message"]["content"])

    same = [
        await text_for("What?"),
        await text_for("What?", user="u", frobnicate=1),
        await text_for("What?", model="alias"),
    ]
    assert len(set(same)) == 1
    others = [
        await text_for("What"),
        await text_for("What?", temperature=0),
        await text_for("What?", seed=4),
        await text_for("What?", documents=[{"text": "because"}]),
    ]
    assert len({*same, *others}) == 5
    async with SimulatedEngine(model="org/other") as other:
        assert (await chat(other, "What?"))["choices"][0]["message"]["content"] not in {*same, *others}
    # A draft does not change the target's output.
    async with SimulatedEngine(model="org/tiny") as undrafted:
        assert (await chat(undrafted, "What?"))["choices"][0]["message"]["content"] == same[0]


async def test_max_tokens_truncates_a_response_and_sets_the_finish_reason(engine: SimulatedEngine) -> None:
    full = await chat(engine, "Go on")
    cut = await chat(engine, "Go on", max_completion_tokens=5)
    assert full["choices"][0]["message"]["content"].startswith(cut["choices"][0]["message"]["content"])
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 5)


async def test_min_tokens_and_ignore_eos_lengthen_a_response(engine: SimulatedEngine) -> None:
    assert (await chat(engine, "Go on", min_tokens=300))["usage"]["completion_tokens"] > 300
    assert (await chat(engine, "Go on", ignore_eos=True, max_tokens=400))["usage"]["completion_tokens"] == 400


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_ends_a_response_before_it(engine: SimulatedEngine, streamed: bool) -> None:
    prompt = "[[sim:say text=one%20two%20three%20four]]"
    if streamed:
        conversation = [{"role": "user", "content": prompt}]
        events = await stream(engine, "/v1/chat/completions", messages=conversation, stop=["wo thr"])
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        choice = events[-1]["choices"][0]
    else:
        choice = (await chat(engine, prompt, stop=["wo thr"]))["choices"][0]
        text = choice["message"]["content"]
    assert (text, choice["finish_reason"], choice["stop_reason"]) == ("one t", "stop", "wo thr")


async def test_several_choices_are_several_texts(engine: SimulatedEngine) -> None:
    choices = (await chat(engine, "Vary", n=3))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3


@pytest.mark.parametrize(
    ("choice", "reason"), [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")]
)
async def test_a_tool_is_called_and_its_arguments_arrive_in_pieces(
    engine: SimulatedEngine, choice: object, reason: str
) -> None:
    conversation = [{"role": "user", "content": "Sunny?"}]
    events = await stream(engine, "/v1/chat/completions", messages=conversation, tools=[TOOL], tool_choice=choice)
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "weather"
    arguments = [call["function"].get("arguments", "") for call in calls]
    assert len(arguments) > 2
    assert events[-1]["choices"][0]["finish_reason"] == reason
    response = (await chat(engine, "Sunny?", tools=[TOOL], tool_choice=choice))["choices"][0]
    assert response["message"]["tool_calls"][0]["function"]["arguments"] == "".join(arguments)
    assert "city" in json.loads("".join(arguments))
    assert (response["finish_reason"], response["message"]["content"]) == (reason, "")


async def test_auto_tool_choice_needs_its_option_as_with_vllm(engine: SimulatedEngine) -> None:
    body = {"messages": [{"role": "user", "content": "Sunny?"}], "tools": [TOOL]}
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        refused = await http.post(f"{engine.url}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "--enable-auto-tool-choice" in refused.json()["error"]["message"]
    async with SimulatedEngine(enable_auto_tool_choice=True) as with_tool_choice:
        answer = await chat(with_tool_choice, "Sunny?", tools=[TOOL])
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("path", "conversation", "result"),
    [
        ("/v1/chat/completions", "messages", {"role": "tool", "tool_call_id": "c", "content": "dry"}),
        ("/v1/messages", "messages", {"role": "user", "content": [{"type": "tool_result", "content": "dry"}]}),
        ("/v1/responses", "input", {"type": "function_call_output", "call_id": "c", "output": "dry"}),
    ],
)
async def test_a_tool_script_calls_its_tool_until_the_conversation_has_enough_results(
    tmp_path: Path, path: str, conversation: str, result: dict[str, Any]
) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"calls": 2, "tools": {"rain": {}, "weather": {"city": ["day {step}"]}}}')
    forms: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": TOOL,
        "/v1/messages": {"name": "weather", "input_schema": {}},
        "/v1/responses": {"type": "function", "name": "weather", "parameters": {}},
    }
    tool = forms[path]
    async with SimulatedEngine(tool_script=script) as engine, httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:

        async def answer_after(results: int, *tools: object) -> str:
            said = [{"role": "user", "content": "Sunny?"}, *[result] * results]
            body = {"model": engine.model, "max_tokens": 200, conversation: said, "tools": tools}
            return (await http.post(engine.url + path, json=body)).text

        assert [f"day {step}" in await answer_after(step - 1, tool) for step in (1, 2, 3)] == [True, True, False]
        assert "day 1" not in await answer_after(0, json.loads(json.dumps(tool).replace("weather", "sea")))


async def test_a_tool_script_says_what_an_answer_thinks_and_says_before_its_call(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"calls": 1, "tools": {"weather": {}}, "thought": "Hm, rain?", "text": "{step}: I look."}')
    question = {"role": "user", "content": "Sunny?"}
    async with SimulatedEngine(tool_script=script) as engine:
        choice = (await chat(engine, "Sunny?", tools=[TOOL]))["choices"][0]
        assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm, rain?", "1: I look.")
        assert (choice["message"]["tool_calls"][0]["function"]["name"], choice["finish_reason"]) == (
            "weather",
            "tool_calls",
        )
        begun = [question, {"role": "assistant", "content": "1: I "}]
        options = {"messages": begun, "tools": [TOOL], "add_generation_prompt": False, "continue_final_message": True}
        events = await stream(engine, "/v1/chat/completions", **options)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == "look."
        names = [delta["tool_calls"][0]["function"].get("name") for delta in deltas if "tool_calls" in delta]
        assert names[0] == "weather"


async def test_thinking_is_sent_as_reasoning_before_the_content(engine: SimulatedEngine) -> None:
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    conversation = [{"role": "user", "content": "Why?"}]
    events = await stream(
        engine, "/v1/chat/completions", messages=conversation, stream_options={"include_usage": True}, **on
    )
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    reasoning = "".join(delta.get("reasoning", "") for delta in deltas)
    response = await chat(engine, "Why?", **on)
    assert reasoning
    assert response["choices"][0]["message"]["reasoning"] == reasoning
    assert response["usage"]["completion_tokens_details"] == events[-1]["usage"]["completion_tokens_details"]
    assert response["choices"][0]["message"]["content"] == "".join(delta.get("content", "") for delta in deltas)


async def test_logprobs_name_every_token(engine: SimulatedEngine) -> None:
    choice = (await chat(engine, "Why?", logprobs=True, top_logprobs=3, max_tokens=7))["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)


async def test_usage_in_every_event_grows_with_the_tokens(engine: SimulatedEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await stream(engine, "/v1/completions", prompt="once", max_tokens=16, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 16
    assert len(set(counts)) < 16, "a draft's tokens come several at a time"


async def test_a_json_response_format_returns_json(engine: SimulatedEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    schema_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await chat(engine, "Why?", response_format=schema_format)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["a"], bool)


async def test_code_prompts_get_code(engine: SimulatedEngine) -> None:
    content = (await chat(engine, "Write a Python function"))["choices"][0]["message"]["content"]
    assert "```python\n" in content
    assert content.endswith("```")


@pytest.mark.parametrize(
    ("path", "field", "value", "message"),
    [
        ("/v1/chat/completions", "messages", "hi", "Input should be a valid list"),
        ("/v1/chat/completions", "stream", "perhaps", "Input should be a valid boolean, unable to interpret input"),
        ("/v1/chat/completions", "max_tokens", 1.5, "got a number with a fractional part"),
        ("/v1/completions", "prompt", 5, "Input should be a valid string"),
        ("/v1/completions", "n", [], "Input should be a valid integer"),
        ("/v1/chat/completions", "model", {}, "Input should be a valid string"),
    ],
)
async def test_a_wrong_type_is_refused_and_named(
    engine: SimulatedEngine, path: str, field: str, value: object, message: str
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", field: value}
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        response = await http.post(f"{engine.url}{path}", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, 400, "Bad Request")
    assert error["param"] == f"body.{field}"
    assert message in error["message"]


async def test_a_draft_can_be_good_at_prose_and_bad_at_code() -> None:
    async with SimulatedEngine(draft="d", acceptance=1.0, code_acceptance=0.0) as engine:
        await chat(engine, "Write a Python function", max_tokens=20)
        accepted = [await engine.metric("spec_decode_num_accepted_tokens_total")]
        await chat(engine, "Tell me about the sea", max_tokens=20)
        accepted.append(await engine.metric("spec_decode_num_accepted_tokens_total"))
        assert accepted[0] == 0
        assert accepted[1] >= 12
