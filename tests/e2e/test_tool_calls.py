"""Real vLLM with a parser that holds the arguments of a tool call back: a router at default timeouts waits for them."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from router.settings.tables import TimeoutSettings
from tests.e2e.vllm_process_tree import VllmProcessTree

pytestmark = [pytest.mark.vllm, pytest.mark.real]

CALL = (
    "<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>"
    '<steptml:invoke name="save"><steptml:parameter name="text">[a-z]{40}</steptml:parameter></steptml:invoke>'
    "<|tool_call_end|><|tool_calls_end|>"
).replace("|", "\uff5c")
"""What the tiny model, which knows no tools, is made to generate. The parser sends the name, and the arguments only
when the call is complete: about 120 tokens later."""
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
    """The events of a stream, the engine that it came from, and the longest time between two."""

    events: list[dict[str, Any]]
    engine: str
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


def ask(tree: VllmProcessTree, slow_steps: Path) -> Answer:
    """Steps are slow from the call's name to its arguments, so that the test lasts little longer than this silence.

    Before, they are a little slow: few tokens are generated before this function has seen the name.
    """
    events: list[dict[str, Any]] = []
    done, silence = False, 0.0
    slow_steps.write_text("0.05")
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
                slow_steps.write_text("0.2")
    return Answer(events, response.headers["x-engine"], done, silence)


def finished(tree: VllmProcessTree) -> float:
    return sum(tree.metric(engine, "vllm:request_success_total") for engine in tree.ports)


def retries(tree: VllmProcessTree) -> list[str]:
    return [
        line for line in httpx.get(f"{tree.url}/metrics").text.splitlines() if line.startswith("llm_retries_total{")
    ]


def test_a_tool_call_whose_arguments_the_parser_holds_back_arrives_whole(
    replicas: VllmProcessTree, slow_steps: Path
) -> None:
    before = retries(replicas), finished(replicas)
    answer = ask(replicas, slow_steps)

    assert [event["error"] for event in answer.events if "error" in event] == []
    assert answer.silence > TimeoutSettings().between_tokens
    name, arguments = answer.call
    assert name == "save"
    assert len(json.loads(arguments)["text"]) == 40
    assert (answer.finish_reasons, answer.done) == (["tool_calls"], True)
    health = httpx.get(f"{replicas.url}/healthz").json()
    assert health["engines"][answer.engine]["breaker"] == "closed"
    # One generation, without a retry.
    assert (retries(replicas), finished(replicas) - 1) == before
    assert replicas.metric(answer.engine, "vllm:num_requests_running") == 0
