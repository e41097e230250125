"""The simulator's /v1/embeddings, /v1/responses and /v1/messages, beyond what captures can show."""

import base64
import json
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.http_exchange import ReceivedResponse, send_request
from tests.support.simulated_engine import SimulatedEngine
from tests.support.typed_answers import typed_delta_text, typed_events

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(model="tiny") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embedder() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(model="tiny", runner="pooling") as running:
        yield running


async def post(engine: SimulatedEngine, path: str, **fields: Any) -> ReceivedResponse:
    body = json.dumps({"model": "tiny", **fields})
    return await send_request(engine.url, "POST", path, body, **{"content-type": "application/json"})


async def message(engine: SimulatedEngine, prompt: str, **fields: Any) -> ReceivedResponse:
    user_messages = [{"role": "user", "content": prompt}]
    return await post(engine, "/v1/messages", messages=user_messages, **{"max_tokens": 200, **fields})


async def vectors(embedder: SimulatedEngine, *texts: str, **fields: Any) -> list[Any]:
    answer = await post(embedder, "/v1/embeddings", input=[*texts], **fields)
    assert answer.status == 200
    return [item["embedding"] for item in json.loads(answer.body)["data"]]


async def test_a_vector_depends_only_on_its_text(embedder: SimulatedEngine) -> None:
    sea, sky, again = await vectors(embedder, "sea", "sky", "sea")
    assert sea == again != sky
    assert [len(vector) for vector in (sea, sky)] == [64, 64]
    assert math.hypot(*sea) == pytest.approx(1)
    assert await vectors(embedder, "sky") == [sky]


async def test_a_vector_in_base64_is_the_same_vector(embedder: SimulatedEngine) -> None:
    for dimensions in (64, 3):
        (plain,) = await vectors(embedder, "sea", dimensions=dimensions)
        (coded,) = await vectors(embedder, "sea", dimensions=dimensions, encoding_format="base64")
        assert list(struct.unpack(f"<{dimensions}f", base64.b64decode(coded))) == plain


@pytest.mark.parametrize(("fault", "status"), [("status code=503", 503), ("error after=0", 500), ("ttft ms=1", 200)])
async def test_embeddings_have_faults_too(embedder: SimulatedEngine, fault: str, status: int) -> None:
    assert (await post(embedder, "/v1/embeddings", input=f"[[sim:{fault}]]")).status == status


@pytest.mark.parametrize("after", [0, 3])
async def test_a_response_whose_engine_dies_breaks_off(engine: SimulatedEngine, after: int) -> None:
    answer = await post(engine, "/v1/responses", input=f"Hi [[sim:error after={after}]]", stream=True)
    assert (answer.status, answer.complete) == (200, False)
    kinds = [event["type"] for event in typed_events(answer.body)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert not {"error", "response.completed"} & set(kinds)
    assert kinds.count("response.output_text.delta") == after


async def test_a_response_and_its_stream_have_the_same_content(engine: SimulatedEngine) -> None:
    request: dict[str, Any] = {"input": "Tell me of the sea", "instructions": "Be brief.", "temperature": 0}
    response = json.loads((await post(engine, "/v1/responses", **request)).body)
    events = typed_events((await post(engine, "/v1/responses", stream=True, **request)).body)
    assert typed_delta_text(events) == response["output"][0]["content"][0]["text"] != ""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    # The second time, the prompt's full block is in the prefix cache.
    read, written = (
        [answer["usage"]["input_tokens_details"].pop(name) for answer in (response, last)]
        for name in ("cached_tokens", "cache_write_tokens")
    )
    assert (read, written) == ([0, 16], [16, 0])
    for answer in (response, last):
        answer.update(id="", created_at=0)
        answer["output"][0]["id"] = ""
    assert last == response


async def test_a_message_and_its_stream_have_the_same_content(engine: SimulatedEngine) -> None:
    request: dict[str, Any] = {"prompt": "Tell me of the sea", "thinking": {"type": "adaptive"}}
    response = json.loads((await message(engine, **request)).body)
    events = typed_events((await message(engine, stream=True, **request)).body)
    assert [block["type"] for block in response["content"]] == ["thinking", "text"]
    assert typed_delta_text(events) == response["content"][1]["text"]
    assert (events[-2]["usage"], events[-2]["delta"]["stop_reason"]) == (response["usage"], response["stop_reason"])


async def test_a_stop_sequence_ends_a_message_and_is_named(engine: SimulatedEngine) -> None:
    answer = json.loads((await message(engine, "[[sim:say text=one%20two%20three]]", stop_sequences=["two"])).body)
    assert answer["content"] == [{"type": "text", "text": "one "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "two")


async def test_a_tool_call_that_the_limit_truncates_has_the_form_of_vllm(engine: SimulatedEngine) -> None:
    schema = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}
    tools = [{"name": "look", "input_schema": schema}]
    answer = await message(engine, "Look", max_tokens=4, tools=tools, tool_choice={"type": "any"})
    (block,) = json.loads(answer.body)["content"]
    assert block["type"] == "text"
    assert block["text"].startswith('<tool_call>\n{"name": "look", "arguments": {"')


async def test_a_message_of_the_history_without_content_fails_as_in_vllm(engine: SimulatedEngine) -> None:
    empty = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}
    answer = await post(engine, "/v1/responses", input=[{"role": "user", "content": "Look"}, empty])
    error = {"message": "list index out of range", "type": "InternalServerError", "param": None, "code": 500}
    assert (answer.status, json.loads(answer.body)) == (500, {"error": error})


async def test_a_response_of_which_a_stop_string_leaves_no_text_has_no_output(engine: SimulatedEngine) -> None:
    request = {"input": "[[sim:say text=two%20three]]", "stop": ["two"]}
    assert json.loads((await post(engine, "/v1/responses", **request)).body)["output"] == []
    events = typed_events((await post(engine, "/v1/responses", stream=True, **request)).body)
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]


async def test_the_last_event_of_a_chat_has_no_text_if_the_engine_parses_what_it_generates() -> None:
    async with SimulatedEngine(model="tiny", enable_auto_tool_choice=True) as parsing:
        answer = await post(
            parsing,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "[[sim:say text=Yes.]]"}],
            stream=True,
        )
    assert b'"delta":{},"logprobs":null,"finish_reason":"stop"' in answer.body
