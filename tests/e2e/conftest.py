"""The complete process tree as a user starts it, with real vLLM engines on this machine's CPU: `make test-vllm`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vllm_process_tree import CONFIGURATION, VllmProcessTree, running_tree
from tests.support.paths import ROOT
from tests.support.ports import free_port

REPLICA = """
[[engine]]
name = "{name}"
model = "tiny"
url = "http://127.0.0.1:{port}"
max_model_len = 4096

[engine.launch]
target = "{models}/llama"
args = [
    "--enforce-eager",
    "--max-num-seqs", "300",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "tests.e2e.slow_worker.SlowSteps",
    "--enable-auto-tool-choice",
    "--tool-call-parser", "step3",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = "{root}", ROUNDHOUSE_TEST_SLOW_STEPS = "{slow_steps}" }}
"""


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    folder = tmp_path_factory.mktemp("tree")
    ports = {name: free_port() for name in ("llama-chat", "llama-code", "mistral")}
    text = CONFIGURATION.read_text()
    for old, port in zip((8001, 8002, 8003), ports.values(), strict=True):
        assert f":{old}" in text
        text = text.replace(f":{old}", f":{port}")
    with running_tree(folder, text, ports) as tree:
        yield tree


@pytest.fixture(scope="session")
def slow_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists, the steps of the replicas are slow."""
    return tmp_path_factory.mktemp("steps") / "slow"


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory, slow_steps: Path) -> Iterator[VllmProcessTree]:
    """Two engines of one model, without drafts, whose parser of tool calls holds the arguments back."""
    ports = {name: free_port() for name in ("one", "two")}
    text = '[[model]]\nname = "tiny"\nrevision = "llama"\n'
    paths = {"models": os.environ.get("ROUNDHOUSE_MODELS", ""), "root": ROOT, "slow_steps": slow_steps}
    text += "".join(REPLICA.format(name=name, port=port, **paths) for name, port in ports.items())
    with running_tree(tmp_path_factory.mktemp("replicas"), text, ports) as tree:
        yield tree
