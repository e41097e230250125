"""Tokens of the generating engines, and scores of a cross-encoder, as real vLLM gives them, behind the router."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.json_shape import shape
from tests.support.paths import CAPTURES, ROOT
from tests.support.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

REQUESTS = json.loads((CAPTURES / "requests.json").read_text())

CONFIGURATION = """
[cache]
url = "embedded"

[[model]]
name = "reranker"
revision = "1"

[[engine]]
name = "reranker"
model = "reranker"
url = "http://127.0.0.1:{port}"
served_model = "tiny"
max_model_len = 1024

[engine.launch]
target = "{model}"
args = [
    "--runner", "pooling",
    "--enforce-eager",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
]
env = {{ OMP_NUM_THREADS = "1" }}
"""


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    folder = tmp_path_factory.mktemp("reranker")
    source = Path(os.environ.get("ROUNDHOUSE_MODELS", ROOT / ".roundhouse" / "models")) / "llama"
    argv = [os.environ["ROUNDHOUSE_VLLM_PYTHON"], "-m", "tests.support.tiny_reranker", str(source), f"{folder}/model"]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=300)
    port = free_port()
    text = CONFIGURATION.format(port=port, model=f"{folder}/model")
    with running_tree(folder, text, {"reranker": port}) as tree:
        yield tree


def ask(tree: VllmProcessTree, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{tree.url}{path}", json=fields, timeout=120)


def asked_twice(tree: VllmProcessTree, path: str, **fields: Any) -> dict[str, Any]:
    """The response, which the engine gave once."""
    first, second = (ask(tree, path, **fields) for _ in range(2))
    assert (first.status_code, first.headers["x-cache"]) == (200, "MISS"), first.text
    assert (second.headers["x-cache"], second.content) == ("HIT", first.content)
    response: dict[str, Any] = first.json()
    return response


def captured_shape(name: str) -> object:
    return shape(json.loads((CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")[2]))


def test_a_text_becomes_tokens_and_tokens_become_the_text(tree: VllmProcessTree) -> None:
    text = "The old lighthouse stands by the sea."
    tokens = asked_twice(tree, "/tokenize", model="llama", prompt=text, return_token_strs=True)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    back = asked_twice(tree, "/detokenize", model="llama", tokens=tokens["tokens"])
    assert back["prompt"].strip() == text
    assert shape(tokens) == captured_shape("tokenize-strs")


def test_a_message_has_as_many_tokens_as_its_count_says(tree: VllmProcessTree) -> None:
    messages = [{"role": "user", "content": "Tell me of the sea."}]
    counted = asked_twice(tree, "/v1/messages/count_tokens", model="llama", messages=messages)
    tokens = asked_twice(tree, "/tokenize", model="llama", messages=messages)
    assert counted["input_tokens"] == tokens["count"]
    assert shape(counted) == captured_shape("count-tokens")
    answer = ask(tree, "/v1/messages", model="llama", messages=messages, max_tokens=4)
    assert answer.json()["usage"]["input_tokens"] == counted["input_tokens"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/score", "/classify", "/pooling"])
def test_a_generating_engine_does_not_serve_what_pooling_engines_do(tree: VllmProcessTree, path: str) -> None:
    answer = ask(tree, path, model="mistral", query="a", queries="a", documents=["b"], input="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_endpoint")
    assert "`mistral`" in answer.json()["error"]["message"]


SCORED = [
    name
    for name, request in REQUESTS.items()
    if request.get("engine") == "classify" and not name.startswith("error") and "okenize" not in name
]


@pytest.mark.parametrize("name", SCORED)
def test_a_cross_encoder_answers_as_captured_and_is_asked_once(reranker: VllmProcessTree, name: str) -> None:
    # A query of its own for each: some captures ask the same at several paths, which share their entries.
    fields = {**json.loads(REQUESTS[name]["body"]), "model": "reranker", "nonce": name}
    assert shape(asked_twice(reranker, REQUESTS[name]["path"], **fields)) == captured_shape(name)


def test_a_score_is_that_of_the_ranking_and_other_documents_are_the_reason_of_a_miss(reranker: VllmProcessTree) -> None:
    documents = ["The sea is deep.", "Ships", "The sky"]
    scored = asked_twice(reranker, "/v1/score", queries="What is deep?", documents=documents)  # the only model
    ranked = asked_twice(reranker, "/v2/rerank", query="What is deep?", documents=documents)
    by_index = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    assert [by_index[item["index"]] for item in scored["data"]] == pytest.approx([s["score"] for s in scored["data"]])
    other = ask(reranker, "/rerank", query="What is deep?", documents=["A lake"])
    assert other.headers["x-cache-reason"] == "rag"


def test_a_cross_encoder_serves_no_chats(reranker: VllmProcessTree) -> None:
    answer = ask(reranker, "/v1/chat/completions", model="reranker", messages=[{"role": "user", "content": "x"}])
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_endpoint")
