"""Real vLLM with a parser that holds the arguments of a tool call back: a router at default timeouts waits for them.

A call that has begun at an engine which dies is continued by another one, with the same parser.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from router.core.endpoints.continuation.derendered_chat import DERENDER_PATH
from router.core.endpoints.recording.sse import DONE, split_events
from router.settings.tables import TimeoutSettings
from tests.e2e.vllm_process_tree import VllmProcessTree
from tests.support.router_process import RouterProcess
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response

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


class Recorded:
    """An engine that sends the first events of a stream, and dies."""

    def __init__(self, events: Sequence[bytes]) -> None:
        self._events = events
        self.engine = ScriptedEngine(script=self)

    async def __call__(self, request: Request) -> Response:
        if request.method == "POST":
            return Response(self._events, content_type="text/event-stream", end="close")
        return json_response({"data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]})


class Constrained:
    """Passes requests on to an engine, which generates what fits `regex` in a completion."""

    def __init__(self, url: str, regex: str) -> None:
        self._url = url
        self._regex = regex
        self.paths: list[str] = []
        self.engine = ScriptedEngine(script=self)

    async def __call__(self, request: Request) -> Response:
        body = request.body
        if request.method == "POST":
            self.paths.append(request.path)
        if request.path == "/v1/completions":
            body = json.dumps(json.loads(body) | {"structured_outputs": {"regex": self._regex}}).encode()
        async with httpx.AsyncClient(timeout=120) as http:
            answer = await http.request(
                request.method, f"{self._url}{request.path}", content=body, headers={"content-type": "application/json"}
            )
        return Response(answer.content, answer.status_code, answer.headers.get("content-type"))


CONFIGURATION = """
[router]

[cache]
url = "unix://{redis}"

[timeouts]
first_token = "2m"
min_tokens_per_second = 0.5

[[model]]
name = "begun"
"""
"""Of a model of its own: the engines that `roundhouse up` announces in Redis serve the other one."""


async def test_a_call_that_has_begun_at_an_engine_that_dies_is_continued_by_another(
    replicas: VllmProcessTree, tmp_path: Path
) -> None:
    real = f"http://127.0.0.1:{replicas.ports['one']}"
    body = {**BODY, "stream_options": {"include_usage": True}}
    async with httpx.AsyncClient(timeout=120) as http:
        whole = await http.post(f"{real}/v1/chat/completions", json={**body, "return_token_ids": True})
        events = split_events(whole.content)
        begun = next(number for number, event in enumerate(events) if b'"tool_calls":[' in event) + 1
        ids = [token for event in events[:begun] for token in token_ids(event)]
        said = (await http.post(f"{real}/detokenize", json={"model": "tiny", "tokens": ids})).json()["prompt"]
        head, pattern, tail = CALL.partition("[a-z]{40}")
        assert head.startswith(said), "the call has begun, and its arguments have not"
        first = Recorded(events[:begun])
        second = Constrained(real, head.removeprefix(said) + pattern + tail)
        text = CONFIGURATION.format(redis=replicas.redis_socket)
        for name, engine in (("a", first.engine), ("b", second.engine)):
            await engine.start()
            text += f'[[engine]]\nname = "{name}"\nmodel = "begun"\nserved_model = "tiny"\n'
            text += f'url = "{engine.url}"\nmax_model_len = 4096\n'
        router = RouterProcess(tmp_path, text.replace('name = "b"\n', 'name = "b"\nshare = 0\n'))
        try:
            router.start()
            await router.wait_until_ready()
            del body["structured_outputs"]  # a stream with a grammar is not continued
            answer = await http.post(f"{router.url}/v1/chat/completions", json=body | {"model": "begun"})
        finally:
            router.kill()
            await first.engine.stop()
            await second.engine.stop()
    assert answer.content.endswith(DONE), answer.text[-500:]
    continued, unbroken = (
        Answer([json.loads(event[6:]) for event in split_events(each.content)[:-1]], "", done=True, silence=0.0)
        for each in (answer, whole)
    )
    assert continued.call == unbroken.call
    assert continued.finish_reasons == ["tool_calls"]
    assert continued.events[-1]["usage"]["completion_tokens"] == unbroken.events[-1]["usage"]["completion_tokens"]
    assert second.paths[:2] == [DERENDER_PATH, "/v1/completions"]


def token_ids(event: bytes) -> list[int]:
    choices = json.loads(event[6:])["choices"]
    return [token for choice in choices for token in choice.get("token_ids") or ()]


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
