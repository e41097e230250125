"""Selection among real vLLM engines: the effect of affinity on prefix caches, and what drafts refuse."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.affinity import compare
from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

CODE = "Write a Python function that reverses a string and returns it."
CHAT = "Tell me a story about the sea and an old lighthouse."
SERVED = "tiny/llama"
MODEL = '[cache]\nurl = "embedded"\n\n[[model]]\nname = "llama"\n'
ENGINE = """
[[engine]]
name = "{name}"
model = "llama"
url = "http://127.0.0.1:{port}"
served_model = "tiny/llama"

[engine.launch]
target = "${{ROUNDHOUSE_MODELS:-.roundhouse/models}}/llama"
draft = "${{ROUNDHOUSE_MODELS:-.roundhouse/models}}/{draft}"
args = [
    "--max-model-len", "4096",
    "--enforce-eager",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "engines.tiny.worker_extension.SampleAsAsked",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = "." }}
"""


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    """Two engines of one model with different drafts, for any task; their context is not in the configuration."""
    drafts = {"llama-a": "code-draft", "llama-b": "qwen-draft"}
    ports = {name: free_port() for name in drafts}
    text = MODEL + "".join(ENGINE.format(name=name, port=ports[name], draft=draft) for name, draft in drafts.items())
    with running_tree(tmp_path_factory.mktemp("replicas"), text, ports) as tree:
        yield tree


def test_prefix_caches_hit_more_often_with_affinity_than_with_round_robin(
    replicas: VllmProcessTree,
) -> None:
    engines = [f"http://127.0.0.1:{port}" for port in replicas.ports.values()]
    shares = asyncio.run(compare(replicas.url, engines, model="llama", served=SERVED))
    print(f"prefix cache hits: {shares.round_robin:.1%} in turn, {shares.routed:.1%} by affinity")  # noqa: T201 - pytest -rP
    assert shares.routed > shares.round_robin + 0.1


def test_the_context_length_of_engines_is_discovered_and_longer_prompts_are_refused(replicas: VllmProcessTree) -> None:
    assert httpx.get(f"{replicas.url}/v1/models/llama").json()["max_model_len"] == 4096
    body = {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4097}
    refused = httpx.post(f"{replicas.url}/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "x-engine" not in refused.headers


def test_fields_that_vllm_refuses_with_speculation_are_removed_and_named(
    replicas: VllmProcessTree,
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "logit_bias": {"5": -100}, "min_p": 0.1}
    engine = f"http://127.0.0.1:{replicas.ports['llama-a']}"
    refused = httpx.post(f"{engine}/v1/chat/completions", json={"model": SERVED, **body}, timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
    )
    answer = httpx.post(f"{replicas.url}/v1/chat/completions", json={"model": "llama", **body}, timeout=60)
    assert (answer.status_code, answer.headers["x-adjusted"]) == (200, "min_p, logit_bias")


async def ask_all(url: str) -> None:
    """Questions of both tasks; affinity spreads their system prompts over both engines."""
    few = asyncio.Semaphore(4)
    prompts = [f"{ask} ({number})" for ask in (CODE, CHAT) for number in range(40)]

    async def ask(number: int, prompt: str) -> None:
        messages = [{"role": "system", "content": f"You are number {number}."}, {"role": "user", "content": prompt}]
        body = {"model": "llama", "messages": messages, "max_tokens": 32, "min_tokens": 32, "stream": True}
        async with few:
            (await http.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()

    async with httpx.AsyncClient(timeout=120) as http, asyncio.TaskGroup() as group:
        for number, prompt in enumerate(prompts):
            group.create_task(ask(number, prompt))


def test_for_each_task_the_value_of_the_preferred_draft_is_learned_from_its_generations(
    replicas: VllmProcessTree,
) -> None:
    asyncio.run(ask_all(replicas.url))

    def known() -> dict[str, list[dict[str, float]]] | None:
        engines = httpx.get(f"{replicas.url}/healthz").json()["engines"].values()
        found = {task: [engine["drafts"][task] for engine in engines] for task in ("chat", "code")}
        # The other draft may have got too few requests to be known.
        measured = [any(d["tokens_per_second"] and d["tokens_per_step"] for d in drafts) for drafts in found.values()]
        return found if all(measured) else None

    for task, drafts in asyncio.run(eventually(known)).items():
        print(task, drafts)  # noqa: T201 - for pytest -rP
        for draft in drafts:
            assert draft["tokens_per_second"] is None or draft["tokens_per_second"] > 1
            assert draft["tokens_per_step"] is None or draft["tokens_per_step"] >= 1
