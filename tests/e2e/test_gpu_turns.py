"""Two real vLLM engines take turns: by their processes, and by vLLM's sleep, which only stands still on a CPU."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.real]

_ENGINE = """
[[engine]]
name = "{name}"
model = "{name}"
url = "http://127.0.0.1:{port}"
sleep = "{sleep}"
[engine.launch]
target = "{models}/llama"
device = "cpu"
args = ["--enforce-eager", "--max-model-len", "1024", "--kv-cache-memory-bytes", "67108864"]
"""


def configuration(sleep: str, ports: dict[str, int]) -> str:
    models = os.environ.get("ROUNDHOUSE_MODELS", "")
    text = "".join(f'[[model]]\nname = "{name}"\n' for name in ports)
    for name, port in ports.items():
        text += _ENGINE.format(name=name, port=port, sleep=sleep, models=models)
    return text + '[[gpu]]\nname = "gpu0"\nengines = ["first", "second"]\n'


@pytest.fixture(params=["process", pytest.param("vllm", marks=pytest.mark.vllm_all)])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    ports = {"first": free_port(), "second": free_port()}
    with running_tree(tmp_path_factory.mktemp("turns"), configuration(request.param, ports), ports) as tree:
        yield tree


def ask(tree: VllmProcessTree, model: str, prompt: str) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 8}
    answer = httpx.post(f"{tree.url}/v1/chat/completions", json=body, timeout=900)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-cache"], answer.json()["choices"][0]["message"]["content"]


def is_awake(tree: VllmProcessTree, name: str) -> bool:
    """An engine whose process is stopped is not."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{tree.ports[name]}/is_sleeping", timeout=30)
    except httpx.ConnectError:
        return False
    return answer.status_code == 404 or not answer.json()["is_sleeping"]


def test_a_request_for_the_other_engine_makes_them_change_places_and_a_hit_does_not(tree: VllmProcessTree) -> None:
    assert (is_awake(tree, "first"), is_awake(tree, "second")) == (True, False)
    result, text = ask(tree, "first", "The sea")
    assert result == "MISS"
    assert ask(tree, "second", "The sea")[0] == "MISS"
    assert (is_awake(tree, "first"), is_awake(tree, "second")) == (False, True)
    assert ask(tree, "first", "The sea") == ("HIT", text)
    assert (is_awake(tree, "first"), is_awake(tree, "second")) == (False, True)
    assert ask(tree, "first", "The hills")[0] == "MISS"
    assert (is_awake(tree, "first"), is_awake(tree, "second")) == (True, False)
    page = httpx.get(f"{tree.url}/metrics").text
    for engine in ("first", "second"):
        assert f'llm_gpu_switches_total{{engine="{engine}",gpu="gpu0",result="woken"}} 1.0' in page
