"""Real vLLM engines with real drafts, behind the router, behind the command line that a user types."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree
from tests.support.typed_answers import RESPONSES, TYPED_PATHS, typed_body, typed_text
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.real]

CODE = "Write a Python function that reverses a string and returns it."
CHAT = "Tell me a story about the sea and an old lighthouse."

ENGINES = ("llama-chat", "llama-code", "mistral")


def body(prompt: str, *, model: str = "llama", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 48, **more}


def ask(tree: VllmProcessTree, request: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{tree.url}/v1/chat/completions", json=request, timeout=120)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that ended normally."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


def text(response: httpx.Response) -> str:
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


@pytest.mark.parametrize(
    ("prompt", "model", "task", "engine"),
    [
        (CODE, "llama", "code", "llama-code"),
        (CHAT, "llama", "chat", "llama-chat"),
        (CODE, "auto", "code", "llama-code"),
        (CHAT, "auto", "chat", "llama-chat"),
        (CHAT, "mistral", "chat", "mistral"),
        (CODE, "mistral", "code", "mistral"),
    ],
)
def test_a_prompt_goes_to_the_engine_of_its_task_and_model_and_is_then_served_from_redis(
    tree: VllmProcessTree, prompt: str, model: str, task: str, engine: str
) -> None:
    request = body(f"{prompt} ({model}, please)", model=model)
    first = ask(tree, request)
    assert first.status_code == 200, first.text
    first_headers = {name: first.headers[name] for name in ("x-cache", "x-task", "x-engine")}
    assert first_headers == {"x-cache": "MISS", "x-task": task, "x-engine": engine}
    second = ask(tree, request)
    assert second.headers["x-cache"] == "HIT"
    assert int(second.headers["age"]) >= 0
    assert without_metrics(second) == without_metrics(first)
    assert (first.json()["metrics"] is not None, second.json()["metrics"]) == (True, None)
    assert text(first)


def without_metrics(answer: httpx.Response) -> str:
    """The response without what it says of its own request's draft, which is not stored."""
    return answer.text.rpartition(',"metrics":')[0]


def test_an_entry_from_a_stream_serves_json_with_the_same_text(tree: VllmProcessTree) -> None:
    streamed = ask(tree, body(CHAT, seed=1, stream=True, stream_options={"include_usage": True}))
    assert streamed.headers["x-cache"] == "MISS"
    chunks = events(streamed)
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    plain = ask(tree, body(CHAT, seed=1))
    assert plain.headers["x-cache"] == "HIT"
    assert text(plain) == joined(chunks)
    assert plain.json()["usage"] == chunks[-1]["usage"]


def test_an_entry_from_json_serves_a_stream_with_the_same_text(tree: VllmProcessTree) -> None:
    plain = ask(tree, body(CODE, seed=2))
    assert plain.headers["x-cache"] == "MISS"
    streamed = ask(tree, body(CODE, seed=2, stream=True))
    assert streamed.headers["x-cache"] == "HIT"
    chunks = events(streamed)
    assert joined(chunks) == text(plain)
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("path", TYPED_PATHS)
@pytest.mark.parametrize("first", [False, True], ids=["kept-as-json", "kept-as-stream"])
def test_responses_and_messages_serve_both_forms_from_either_form(
    tree: VllmProcessTree, path: str, first: bool
) -> None:
    limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 32}
    answers = [
        httpx.post(f"{tree.url}{path}", json=typed_body(path, f"{CHAT} {first}", stream=stream, **limit), timeout=120)
        for stream in (first, not first, first)
    ]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
    assert typed_text(answers[0]) == typed_text(answers[1]) != ""
    assert answers[0].content == answers[2].content


def test_redis_cli_shows_an_entry_under_its_tenant_with_an_expiry(tree: VllmProcessTree) -> None:
    key = ask(tree, body(CHAT, seed=3)).headers["x-cache-key"]
    # The entry may be written when the response has been read.
    asyncio.run(eventually(lambda: key in tree.redis("--scan", "--pattern", "rh:1:default:*")))
    fields = tree.redis("HGETALL", key)
    entry = dict(zip(fields[::2], fields[1::2], strict=True))
    assert entry["model"] == "llama"
    assert entry["engine"] == "llama-chat"
    assert json.loads(entry["body"])["choices"][0]["finish_reason"]
    day, stale = 24 * 3600, 3600
    assert day < int(tree.redis("TTL", key)[0]) <= day + stale


def test_openai_python_streams_through_the_router(tree: VllmProcessTree) -> None:
    with openai.OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        stream = client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": CHAT}], max_tokens=24, stream=True
        )
        pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert len(pieces) > 2
    assert "".join(pieces)


def test_completions_are_routed_and_cached_too(tree: VllmProcessTree) -> None:
    request = {"model": "llama", "prompt": "def reverse(text):\n", "max_tokens": 16, "temperature": 0}
    url = f"{tree.url}/v1/completions"
    first, second = (httpx.post(url, json=request, timeout=120) for _ in range(2))
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "HIT")
    assert first.headers["x-engine"] == "llama-code"
    assert second.json()["choices"][0]["text"] == first.json()["choices"][0]["text"]


def test_an_engines_refusal_reaches_the_client_unchanged(tree: VllmProcessTree) -> None:
    refused = ask(tree, body(CHAT, max_tokens=10**6))
    assert refused.status_code == 400
    assert "max_tokens" in refused.json()["error"]["message"]
    assert refused.headers["x-cache"] == "MISS"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_draft_of_each_engine_predicts_some_tokens_correctly(tree: VllmProcessTree, engine: str) -> None:
    model = "mistral" if engine == "mistral" else "llama"
    prompt = CODE if engine == "llama-code" else CHAT
    assert ask(tree, body(prompt, model=model, seed=4, max_tokens=64)).headers["x-engine"] == engine
    assert tree.metric(engine, "vllm:spec_decode_num_drafts_total") > 0
    assert tree.metric(engine, "vllm:spec_decode_num_accepted_tokens_total") > 0


async def test_the_router_shows_its_engines_and_their_speculation(tree: VllmProcessTree) -> None:
    expected = [f'roundhouse_engine_up{{engine="{engine}"}} 1.0' for engine in ENGINES]
    expected += [f'vllm_spec_acceptance_rate{{engine="{engine}"}}' for engine in ENGINES]
    async with httpx.AsyncClient(base_url=tree.url, timeout=30) as client:

        async def is_shown() -> bool:
            # An engine that computes on these cores may answer a check of its metrics too late; they are unknown then.
            page = (await client.get("/metrics")).text
            return all(line in page for line in expected)

        await eventually(is_shown, timeout=60)
        health = (await client.get("/healthz")).json()
        assert health["status"] == "healthy"
        assert set(health["engines"]) == set(tree.ports)
        assert (await client.get("/readyz")).status_code == 200
