"""Real vLLM engines: a switch under continuous load fails no request, and no old answer is served afterwards."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.paths import ROOT
from tests.support.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.real]

MODELS = os.environ.get("ROUNDHOUSE_MODELS", "")
CONFIGURATION = """
[[model]]
name = "tiny"
revision = "llama"

[[engine]]
name = "tiny"
model = "tiny"
url = "http://127.0.0.1:{port}"
max_model_len = 4096

[engine.launch]
target = "{models}/llama"
draft = "{models}/code-draft"
args = [
    "--enforce-eager",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "engines.tiny.worker_extension.SampleAsAsked",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = "{root}" }}
"""
SEA = "Tell me about the sea."


@pytest.fixture
def small_tree(tmp_path: Path) -> Iterator[VllmProcessTree]:
    port = free_port()
    text = CONFIGURATION.format(port=port, models=MODELS, root=ROOT)
    with running_tree(tmp_path, text, {"tiny": port}) as tree:
        yield tree


def ask(tree: VllmProcessTree, prompt: str, *, stream: bool = False) -> httpx.Response:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 16, "stream": stream}
    return httpx.post(f"{tree.url}/v1/chat/completions", json=body, timeout=120)


@contextmanager
def load(tree: VllmProcessTree) -> Iterator[list[httpx.Response]]:
    """New requests one after the other, in two threads; the responses so far."""
    responses: list[httpx.Response] = []
    ended = threading.Event()

    def send_requests(thread: int) -> None:
        while not ended.is_set():
            responses.append(ask(tree, f"{thread}: request {len(responses)}", stream=thread == 0))

    threads = [threading.Thread(target=send_requests, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield responses
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def run(tmp_path: Path, *command: str) -> dict[str, Any]:
    argv = [
        sys.executable,
        "-m",
        "router",
        "engines",
        *command,
        "--config",
        str(tmp_path / "roundhouse.toml"),
        "--json",
    ]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def test_a_switch_under_load_fails_no_request_and_a_rollback_restores_the_answers(
    small_tree: VllmProcessTree, tmp_path: Path
) -> None:
    first = ask(small_tree, SEA)
    with load(small_tree) as responses:
        options = ["--target", f"{MODELS}/mistral", "--draft", f"{MODELS}/mistral-draft", "--shadow", "2"]
        result = run(tmp_path, "switch", "tiny", *options)
    assert {response.status_code for response in responses} == {200}
    assert all(response.text.endswith("[DONE]\n\n") for response in responses if "data:" in response.text)
    assert result["revision"] == f"{MODELS}/mistral"
    assert not result["engines"][0]["stopped_busy"]
    assert result["shadow"]["failed_new"] == 0
    second = ask(small_tree, SEA)
    assert second.headers["x-cache"] == "MISS"
    assert second.json()["choices"] != first.json()["choices"]

    with load(small_tree) as responses:
        run(tmp_path, "rollback", "tiny")
    assert {response.status_code for response in responses} == {200}
    again = ask(small_tree, SEA)
    assert (again.headers["x-cache"], again.headers["x-cache-key"]) == ("HIT", first.headers["x-cache-key"])
