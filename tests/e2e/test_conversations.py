"""Kept responses, several answers to one request, and histories with tools, before real vLLM engines.

vLLM keeps no responses here: each turn reaches it whole, as items that it has said itself and must accept.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.router_process import RouterProcess
from tests.support.typed_answers import MESSAGES, RESPONSES, typed_delta_text, typed_events
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.real]

Item = dict[str, Any]
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL = {"type": "function", "name": "save", "parameters": PARAMETERS}

CONFIGURATION = """
[router]

[cache]
url = "unix://{redis}"
samples = 2
timeout = "2500ms"

[timeouts]
first_token = "2m"
min_tokens_per_second = 0.5

[[model]]
name = "tiny"
revision = "llama"
"""

THINKER = """
[cache]
url = "embedded"

[[model]]
name = "tiny"
revision = "thinker"

[[engine]]
name = "thinker"
model = "tiny"
url = "http://127.0.0.1:{port}"
max_model_len = 4096

[engine.launch]
target = "{models}/llama"
args = [
    "--enforce-eager",
    "--kv-cache-memory-bytes", "32M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--enable-auto-tool-choice",
    "--tool-call-parser", "qwen3_coder",
    "--reasoning-parser", "qwen3",
    "--structured-outputs-config", '{{"enable_in_reasoning": true}}',
]
env = {{ OMP_NUM_THREADS = "1" }}
"""
THOUGHT = "I save them\\.</think>"
CALL = "<tool_call>\\n<function=save>\\n<parameter=text>\\n[a-z]{4}\\n</parameter>\\n</function>\\n</tool_call>"
"""What the tiny model, which knows no tools, is made to generate."""


@contextmanager
def two_routers(tree: VllmProcessTree, folder: Path, rest: str = "") -> Iterator[list[str]]:
    """Their URLs. They are before the engines of the tree, and share its Redis. `rest`: further tables."""
    text = CONFIGURATION.format(redis=tree.redis_socket) + rest
    for name, port in tree.ports.items():
        text += f'[[engine]]\nname = "{name}"\nmodel = "tiny"\nurl = "http://127.0.0.1:{port}"\nmax_model_len = 4096\n'
    routers = [RouterProcess(folder, text, name=name) for name in ("first", "second")]
    try:
        for router in routers:
            router.start()
        for router in routers:
            asyncio.run(router.wait_until_ready())
        yield [router.url for router in routers]
    finally:
        for router in routers:
            router.kill()


@pytest.fixture(scope="module")
def urls(replicas: VllmProcessTree, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with two_routers(replicas, tmp_path_factory.mktemp("routers")) as urls:
        yield urls


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two routers before an engine that parses reasoning and calls of tools."""
    folder, port = tmp_path_factory.mktemp("thinker"), free_port()
    models = os.environ.get("ROUNDHOUSE_MODELS", ROOT / ".roundhouse" / "models")
    with (
        running_tree(folder, THINKER.format(port=port, models=models), {"thinker": port}) as tree,
        two_routers(tree, tmp_path_factory.mktemp("routers")) as urls,
    ):
        yield urls


def post(url: str, path: str, **fields: Any) -> httpx.Response:
    response = httpx.post(f"{url}{path}", json={"model": "tiny", **fields}, timeout=120)
    assert response.status_code == 200, response.text
    return response


def user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


def turn(url: str, **fields: Any) -> Item:
    """The response, once it is kept; a stream's is that of its last event."""
    answer = post(url, RESPONSES, **{"temperature": 0, "max_output_tokens": 12, "store": True, **fields})
    if fields.get("stream"):
        events = typed_events(answer.content)
        response: Item = events[-1]["response"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert typed_delta_text(events) == "".join(text_of(item) for item in response["output"])
    else:
        response = answer.json()
    asyncio.run(eventually(lambda: httpx.get(f"{url}{RESPONSES}/{response['id']}", timeout=120).status_code == 200))
    return response


def text_of(item: Item) -> str:
    return str(item["content"][0]["text"]) if item["type"] == "message" else ""


def input_items(url: str, id_: str) -> list[Item]:
    page = httpx.get(f"{url}{RESPONSES}/{id_}/input_items?order=asc&limit=100", timeout=120)
    listed: list[Item] = page.json()["data"]
    return listed


def test_turns_over_two_routers_reach_the_engine_as_the_items_that_it_has_said(
    urls: list[str], replicas: VllmProcessTree
) -> None:
    first = turn(urls[0], input="Tell me of the sea.", instructions="Be brief.")
    second = turn(urls[1], input="And of the sky?", previous_response_id=first["id"], stream=True)
    third = turn(urls[0], input="And then?", previous_response_id=second["id"])

    said = [user("Tell me of the sea."), *first["output"], user("And of the sky?"), *second["output"]]
    whole = {"input": [*said, user("And then?")], "temperature": 0, "max_output_tokens": 12}
    # The same request with its history, at an engine: as many tokens, and the same text at temperature 0.
    alone = post(f"http://127.0.0.1:{replicas.ports['one']}", RESPONSES, **whole).json()
    assert (alone["usage"]["input_tokens"], text_of(alone["output"][0])) == (
        third["usage"]["input_tokens"],
        text_of(third["output"][0]),
    )

    listed = input_items(urls[1], third["id"])
    assert [item["role"] for item in listed] == ["user", "assistant", "user", "assistant", "user"]
    assert [item["id"] for item in listed[1::2]] == [first["output"][0]["id"], second["output"][0]["id"]]
    found = httpx.get(f"{urls[1]}{RESPONSES}/{third['id']}", timeout=120).json()
    assert found == {**third, "previous_response_id": second["id"]}
    assert httpx.delete(f"{urls[0]}{RESPONSES}/{first['id']}", timeout=120).json()["deleted"] is True
    follow_up = {"model": "tiny", "input": "And?", "previous_response_id": first["id"]}
    gone = httpx.post(f"{urls[1]}{RESPONSES}", json=follow_up, timeout=120)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "previous_response_not_found")


def test_items_of_a_stream_are_referred_to_by_their_ids(urls: list[str], replicas: VllmProcessTree) -> None:
    first = turn(urls[0], input="Tell me of rivers.", stream=True)
    asked, more = user("Tell me of rivers."), user("And of lakes?")
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    second = turn(urls[1], input=[asked, *references, more])
    whole = {"input": [asked, *first["output"], more], "temperature": 0, "max_output_tokens": 12}
    alone = post(f"http://127.0.0.1:{replicas.ports['one']}", RESPONSES, **whole).json()
    assert (alone["usage"]["input_tokens"], text_of(alone["output"][0])) == (
        second["usage"]["input_tokens"],
        text_of(second["output"][0]),
    )


def test_two_answers_to_a_request_with_temperature_are_handed_out_in_turn_by_both_routers(urls: list[str]) -> None:
    fields = {"messages": [user("Tell me of ships.")], "temperature": 1.5, "max_tokens": 12}
    answers = [post(urls[number % 2], "/v1/chat/completions", **fields) for number in range(6)]
    assert answers[1].headers["x-cache-reason"] == "sample"
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "MISS", *["HIT"] * 4]
    one, two = (answer.json()["id"] for answer in answers[:2])
    assert one != two
    assert [answer.json()["id"] for answer in answers[2:]] == [one, two] * 2
    streamed = post(urls[0], "/v1/chat/completions", **fields, stream=True)
    assert (streamed.headers["x-cache"], one in streamed.text) == ("HIT", True)


def history(*result: Item) -> list[Item]:
    call = {"type": "tool_use", "id": "toolu_1", "name": "save", "input": {"text": "abc"}}
    return [
        {"role": "user", "content": "Save the letters."},
        {"role": "assistant", "content": [{"type": "text", "text": "I save them."}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [*result]}]},
    ]


def test_a_message_with_a_tool_and_its_result_in_the_history_is_answered_and_found_again(urls: list[str]) -> None:
    tools = [{"name": "save", "input_schema": PARAMETERS}]
    fields: Item = {"tools": tools, "max_tokens": 12, "temperature": 0}
    saved = history({"type": "text", "text": "saved"})
    first = post(urls[0], MESSAGES, messages=saved, **fields)
    again = post(urls[1], MESSAGES, messages=saved, **fields, stream=True)
    assert [answer.headers["x-cache"] for answer in (first, again)] == ["MISS", "HIT"]
    assert typed_delta_text(typed_events(again.content)) == first.json()["content"][0]["text"] != ""
    other = post(
        urls[1], MESSAGES, messages=history({"type": "text", "text": "There was no room to save it."}), **fields
    )
    assert other.headers["x-cache"] == "MISS"
    assert other.json()["usage"]["input_tokens"] > first.json()["usage"]["input_tokens"]


@pytest.mark.vllm_all
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_kept_thought_and_its_call_are_continued_by_the_result_of_the_tool(thinking: list[str], stream: bool) -> None:
    fields = {"tools": [TOOL], "stream": stream, "reasoning": {"effort": "low"}, "max_output_tokens": 200}
    called = turn(thinking[0], input="Save it.", **fields, structured_outputs={"regex": THOUGHT + CALL})
    thought, call = called["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "I save them.")
    assert (call["type"], call["name"], len(json.loads(call["arguments"])["text"])) == ("function_call", "save", 4)
    assert called["usage"]["output_tokens_details"]["reasoning_tokens"] > 0

    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "saved"}
    said = {"regex": f"{THOUGHT}Yes\\."}
    answer = turn(thinking[1], input=[result], previous_response_id=called["id"], **fields, structured_outputs=said)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert text_of(answer["output"][1]) == "Yes."
    kinds = [item["type"] for item in input_items(thinking[0], answer["id"])]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output"]
    last = turn(thinking[0], input="And?", previous_response_id=answer["id"], **fields, structured_outputs=said)
    assert last["usage"]["input_tokens"] > answer["usage"]["input_tokens"]


@pytest.mark.vllm_all
def test_a_message_that_thinks_is_a_hit_and_goes_back_whole(thinking: list[str]) -> None:
    fields: Item = {"max_tokens": 24, "temperature": 0, "thinking": {"type": "adaptive"}}
    question = {"role": "user", "content": "Tell me of the sea."}
    first, again = (post(url, MESSAGES, messages=[question], **fields) for url in thinking)
    assert (again.headers["x-cache"], again.content) == ("HIT", first.content)
    (block,) = first.json()["content"]
    assert (block["type"], bool(block["signature"])) == ("thinking", True)
    streamed = typed_events(post(thinking[1], MESSAGES, messages=[question], **fields, stream=True).content)
    thoughts = [event["delta"].get("thinking", "") for event in streamed if event["type"] == "content_block_delta"]
    assert "".join(thoughts) == block["thinking"]
    back = [question, {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]}, question]
    assert post(thinking[0], MESSAGES, messages=back, **fields).headers["x-cache"] == "MISS"
