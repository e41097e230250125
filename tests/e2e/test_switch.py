"""Real vLLM engines: a switch under continuous load fails no request, and no old answer is served afterwards."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree

pytestmark = [pytest.mark.vllm, pytest.mark.real]

MODELS = os.environ.get("ROUNDHOUSE_MODELS", "")
SEA = "Tell me about the sea."
PAUSE = 0.3
"""Seconds between two requests of a thread. Without it, they take the processor from the engine that starts."""


def ask(tree: VllmProcessTree, prompt: str, *, stream: bool = False) -> httpx.Response:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "mistral", "messages": messages, "temperature": 0, "max_tokens": 16, "stream": stream}
    return httpx.post(f"{tree.url}/v1/chat/completions", json=body, timeout=120)


@contextmanager
def load(tree: VllmProcessTree) -> Iterator[list[httpx.Response]]:
    """New requests one after the other, in two threads, one of which asks for streams; the responses so far."""
    responses: list[httpx.Response] = []
    ended = threading.Event()

    def send_requests(thread: int) -> None:
        while not ended.is_set():
            responses.append(ask(tree, f"{thread}: request {len(responses)}", stream=thread == 0))
            ended.wait(PAUSE)

    threads = [threading.Thread(target=send_requests, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield responses
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def run(tree: VllmProcessTree, *command: str) -> dict[str, Any]:
    argv = [
        sys.executable,
        "-m",
        "router",
        "engines",
        *command,
        "--config",
        str(tree.config),
        "--json",
    ]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


@pytest.fixture(scope="module")
def first(tree: VllmProcessTree) -> httpx.Response:
    """The answer before the switch."""
    return ask(tree, SEA)


def test_a_switch_under_load_fails_no_request_and_stores_new_answers(
    tree: VllmProcessTree, first: httpx.Response
) -> None:
    with load(tree) as responses:
        options = ["--target", f"{MODELS}/llama", "--draft", f"{MODELS}/code-draft", "--shadow", "2"]
        result = run(tree, "switch", "mistral", *options)
    assert {response.status_code for response in responses} == {200}
    assert all(response.text.endswith("[DONE]\n\n") for response in responses if "data:" in response.text)
    assert result["revision"] == f"{MODELS}/llama"
    assert not result["engines"][0]["stopped_busy"]
    assert result["shadow"]["failed_new"] == 0
    second = ask(tree, SEA)
    assert second.headers["x-cache"] == "MISS"
    assert second.json()["choices"] != first.json()["choices"]


@pytest.mark.vllm_all
def test_a_rollback_under_load_fails_no_request_and_restores_the_answers(
    tree: VllmProcessTree, first: httpx.Response
) -> None:
    with load(tree) as responses:
        run(tree, "rollback", "mistral")
    assert {response.status_code for response in responses} == {200}
    again = ask(tree, SEA)
    assert (again.headers["x-cache"], again.headers["x-cache-key"]) == ("HIT", first.headers["x-cache-key"])
