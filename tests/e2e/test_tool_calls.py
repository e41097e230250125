"""Real vLLM with a parser that holds the arguments of a tool call back: a router at default timeouts waits for them."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from router.settings.tables import TimeoutSettings
from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.paths import ROOT
from tests.support.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.real]

CONFIGURATION = """
[[model]]
name = "tiny"

[[engine]]
name = "tiny"
model = "tiny"
url = "http://127.0.0.1:{port}"
max_model_len = 4096

[engine.launch]
target = "{models}/llama"
args = [
    "--enforce-eager",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "tests.e2e.slow_worker.SlowSteps",
    "--enable-auto-tool-choice",
    "--tool-call-parser", "step3",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = "{root}", ROUNDHOUSE_TEST_SLOW_STEPS = "{slow_steps}" }}
"""
CALL = (
    "<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>"
    '<steptml:invoke name="save"><steptml:parameter name="text">[a-z]{20}</steptml:parameter></steptml:invoke>'
    "<|tool_call_end|><|tool_calls_end|>"
).replace("|", "\uff5c")
"""What the tiny model, which knows no tools, is made to generate. The parser sends the name, and the arguments only
when the call is complete: about 100 tokens later."""
TOOL = {"name": "save", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Save the letters."}],
    "tools": [{"type": "function", "function": TOOL}],
    "structured_outputs": {"regex": CALL},
    "temperature": 0,
    "max_tokens": 600,
    "stream": True,
}


class Answer(NamedTuple):
    """The events of a stream, and the longest time between two."""

    events: list[dict[str, Any]]
    done: bool
    silence: float

    @property
    def call(self) -> tuple[str, str]:
        """The name and the arguments of the tool call."""
        choices = [choice for event in self.events for choice in event.get("choices", ())]
        parts = [part["function"] for choice in choices for part in choice["delta"].get("tool_calls", ())]
        name, arguments = (("".join(part.get(key) or "" for part in parts)) for key in ("name", "arguments"))
        return name, arguments

    @property
    def finish_reasons(self) -> list[str]:
        choices = [choice for event in self.events for choice in event.get("choices", ())]
        return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@pytest.fixture
def slow_steps(tmp_path: Path) -> Path:
    """While this file exists, the engine's steps are slow."""
    return tmp_path / "slow-steps"


@pytest.fixture
def tree(tmp_path: Path, slow_steps: Path) -> Iterator[VllmProcessTree]:
    ports = {"tiny": free_port()}
    models = os.environ.get("ROUNDHOUSE_MODELS", "")
    text = CONFIGURATION.format(port=ports["tiny"], models=models, root=ROOT, slow_steps=slow_steps)
    with running_tree(tmp_path, text, ports) as tree:
        yield tree


def ask(tree: VllmProcessTree, slow_steps: Path) -> Answer:
    """Steps are slow from the call's name to its arguments, so that the test lasts little longer than this silence."""
    events: list[dict[str, Any]] = []
    done, silence = False, 0.0
    with httpx.stream("POST", f"{tree.url}/v1/chat/completions", json=BODY, timeout=120) as response:
        assert response.status_code == 200
        last = time.monotonic()
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            now = time.monotonic()
            silence, last = max(silence, now - last), now
            if line == "data: [DONE]":
                done = True
                continue
            events.append(json.loads(line[6:]))
            if '"arguments"' in line or "error" in events[-1]:
                slow_steps.unlink(missing_ok=True)
            elif '"tool_calls"' in line:
                slow_steps.touch()
    return Answer(events, done, silence)


def test_a_tool_call_whose_arguments_the_parser_holds_back_arrives_whole(
    tree: VllmProcessTree, slow_steps: Path
) -> None:
    answer = ask(tree, slow_steps)

    assert [event["error"] for event in answer.events if "error" in event] == []
    assert answer.silence > TimeoutSettings().between_tokens
    name, arguments = answer.call
    assert name == "save"
    assert len(json.loads(arguments)["text"]) == 20
    assert (answer.finish_reasons, answer.done) == (["tool_calls"], True)
    health = httpx.get(f"{tree.url}/healthz").json()
    assert health["engines"]["tiny"]["breaker"] == "closed"
    # One generation, without a retry.
    assert "llm_retries_total{" not in httpx.get(f"{tree.url}/metrics").text
    assert tree.metric("tiny", "vllm:request_success_total") == 1
    assert tree.metric("tiny", "vllm:num_requests_running") == 0
