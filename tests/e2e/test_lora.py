"""With real vLLM: an adapter of the configuration, and one that is loaded and unloaded at run time."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from router.api.access.auth import hash_key
from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.lora_files import write_lora_adapter
from tests.support.paths import ROOT
from tests.support.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

ADMIN = {"authorization": "Bearer admin-key"}


class Lora(NamedTuple):
    """A router with one engine, and two adapters: `first` is loaded, `second` is in a folder."""

    tree: VllmProcessTree
    first: Path
    second: Path

    def complete(self, model: str) -> httpx.Response:
        body = {"model": model, "prompt": "def main", "max_tokens": 12, "temperature": 0}
        return httpx.post(f"{self.tree.url}/v1/completions", json=body, timeout=120)

    def text(self, model: str) -> str:
        response = self.complete(model)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def change(self, what: str, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.tree.url}/v1/{what}_lora_adapter", json=fields, headers=ADMIN, timeout=120)

    def models(self) -> dict[str, Any]:
        return {model["id"]: model for model in httpx.get(f"{self.tree.url}/v1/models").json()["data"]}


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lora]:
    folder = tmp_path_factory.mktemp("lora")
    base = Path(os.environ["ROUNDHOUSE_MODELS"]) / "llama"
    first, second = (write_lora_adapter(folder / name, base, seed) for seed, name in enumerate(("one", "two")))
    port = free_port()
    text = f"""
[auth]
admin_keys = ["{hash_key(b"admin-key")}"]

[[model]]
name = "llama"

[[engine]]
name = "llama"
model = "llama"
url = "http://127.0.0.1:{port}"
max_model_len = 1024

[engine.launch]
target = "{base}"
device = "cpu"
max_lora_rank = 8
lora = {{ first = "{first}" }}
args = [
    "--enforce-eager",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "engines.tiny.worker_extension.SampleAsAsked",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = "{ROOT}", VLLM_ALLOW_RUNTIME_LORA_UPDATING = "True" }}
"""
    with running_tree(folder, text, {"llama": port}) as tree:
        yield Lora(tree, first, second)


def test_an_adapter_of_the_configuration_is_a_model_with_answers_of_its_own(lora: Lora) -> None:
    assert lora.models()["first"]["parent"] == "llama"
    base, adapted = lora.complete("llama"), lora.complete("first")
    assert adapted.json()["model"] == "first"
    assert adapted.json()["choices"][0]["text"] != base.json()["choices"][0]["text"]
    assert [lora.complete(model).headers["x-cache"] for model in ("llama", "first")] == ["HIT", "HIT"]


def test_an_adapter_is_loaded_replaced_and_unloaded_at_run_time(lora: Lora) -> None:
    assert lora.complete("second").status_code == 404
    loaded = lora.change("load", lora_name="second", lora_path=str(lora.second))
    assert (loaded.status_code, loaded.json()["engines"][0]["state"]) == (200, "loaded"), loaded.text
    own = lora.text("second")
    assert own not in (lora.text("first"), lora.text("llama"))
    again = lora.change("load", lora_name="second", lora_path=str(lora.second))
    assert again.json()["engines"][0]["state"] == "already_loaded"
    replaced = lora.change("load", lora_name="second", lora_path=str(lora.first), load_inplace=True)
    assert replaced.status_code == 200, replaced.text
    assert lora.text("second") == lora.text("first")
    assert lora.change("unload", lora_name="second").status_code == 200
    assert lora.complete("second").status_code == 404
    assert "second" not in lora.models()


def test_what_vllm_refuses_is_told_in_its_words(lora: Lora) -> None:
    response = lora.change("load", lora_name="third", lora_path="/nowhere/at/all")
    assert response.status_code == 400
    assert "No adapter found for /nowhere/at/all" in response.json()["error"]["message"]
