"""The simulator's /v1/chat/completions/derender, and completions of the ids of a scripted answer."""

import json
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH: Final = "/v1/chat/completions/derender"
SCRIPT: Final = {
    "calls": 3,
    "tools": {"rain": {}, "look": {"at": ["day {step}", 7]}},
    "thought": "Hm, which day? It is number {step}.",
    "text": "{step}: I look.",
}
RESULT: Final = {"role": "tool", "tool_call_id": "c", "content": "dry"}
CHAT: Final[dict[str, Any]] = {
    "messages": [
        {"role": "system", "content": "Look at rain."},
        {"role": "user", "content": "Dry?"},
        {"role": "assistant", "content": "Hm.", "tool_calls": []},
        RESULT,
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
    "temperature": 0.7,
}


class Engines(NamedTuple):
    """Two processes with one script, and one without a parser of tokens."""

    first: SimulatedEngine
    second: SimulatedEngine
    without: SimulatedEngine
    http: httpx.AsyncClient

    async def post(self, engine: SimulatedEngine, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        response = await self.http.post(engine.url + path, json=body)
        return response.status_code, response.json()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    async with (
        SimulatedEngine(model="tiny", tool_script=script, enable_scale_out=True) as first,
        SimulatedEngine(model="tiny", tool_script=script, enable_scale_out=True) as second,
        SimulatedEngine(model="tiny", tool_script=script) as without,
        httpx.AsyncClient(timeout=TEST_TIMEOUT) as http,
    ):
        yield Engines(first, second, without, http)


def derender_body(prompt: list[int], ids: list[int]) -> dict[str, Any]:
    # The name of the model is the client's.
    response = {"prompt_token_ids": prompt, "choices": [{"index": 0, "token_ids": ids}]}
    return {"generate_response": response, "chat_request": {**CHAT, "model": "alias", "stream": True}}


async def test_another_engine_continues_a_scripted_answer_after_any_token_and_reads_it(engines: Engines) -> None:
    _, whole = await engines.post(engines.first, "/v1/chat/completions", CHAT | {"return_token_ids": True})
    (choice,) = whole["choices"]
    prompt, ids = whole["prompt_token_ids"], choice["token_ids"]
    (call,) = choice["message"].pop("tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"at": ["day 2", 7]}
    for said in range(1, len(ids)):
        body = {"prompt": [*prompt, *ids[:said]], "max_tokens": 100, "return_token_ids": True, "temperature": 0.7}
        _, rest = await engines.post(engines.second, "/v1/completions", body)
        assert rest["choices"][0]["token_ids"] == ids[said:]
    status, parsed = await engines.post(engines.second, PATH, derender_body(prompt, ids[:-1]))
    assert status == 200
    message = parsed["choices"][0]["message"]
    assert [each["function"] for each in message.pop("tool_calls")] == [call["function"]]
    assert message == choice["message"]
    assert parsed["choices"][0]["finish_reason"] == "stop"
    assert parsed["usage"]["completion_tokens"] == len(ids) - 1


async def test_a_call_that_is_cut_off_is_text(engines: Engines) -> None:
    _, whole = await engines.post(engines.first, "/v1/chat/completions", CHAT | {"return_token_ids": True})
    ids = whole["choices"][0]["token_ids"][:-4]
    _, parsed = await engines.post(engines.second, PATH, derender_body(whole["prompt_token_ids"], ids))
    message = parsed["choices"][0]["message"]
    assert message["content"].startswith("2: I look.<tool_call>")
    assert "tool_calls" not in message


async def test_tokens_of_another_answer_are_refused(engines: Engines) -> None:
    for ids in ([5, 6], []):
        assert (await engines.post(engines.first, PATH, derender_body([1], ids)))[0] == 400
    body = derender_body([1], [5]) | {"chat_request": None}
    assert (await engines.post(engines.first, PATH, body))[0] == 400


async def test_an_empty_request_tells_whether_there_is_a_parser_of_tokens(engines: Engines) -> None:
    status, answer = await engines.post(engines.first, PATH, {})
    assert (status, answer["error"]["type"]) == (400, "Bad Request")
    assert answer["error"]["message"].startswith("3 validation errors:")
    status, answer = await engines.post(engines.without, PATH, {})
    assert (status, answer["error"]["type"]) == (403, "PermissionDeniedError")
    assert "--enable-scale-out" in answer["error"]["message"]
