"""The complete process tree as a user starts it, with real vLLM engines on this machine's CPU: `make test-vllm`.

A start of an engine costs a core for over half a minute, most of it for imports. So all tests that run without ALL=1
share one tree: the engines of engines/tiny/roundhouse.toml, and two replicas of a model without drafts.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vllm_process_tree import CONFIGURATION, Events, VllmProcessTree, running_tree
from tests.support.paths import ROOT
from tests.support.ports import free_port

# Of a hundred streams at once on a busy machine, each gets few tokens a second. `between_tokens` is the default.
TABLES = """
[timeouts]
first_token = "2m"
min_tokens_per_second = 0.5

[[model]]
name = "tiny"
revision = "llama"
"""

# The cache holds the streams of test_continuations, and test_kv_events fills it.
REPLICA = """
[[engine]]
name = "{name}"
model = "tiny"
url = "http://127.0.0.1:{port}"
max_model_len = 4096
kv_events = "tcp://127.0.0.1:{events}"
kv_events_replay = "tcp://127.0.0.1:{replay}"

[engine.launch]
target = "{models}/llama"
args = [
    "--enforce-eager",
    "--max-num-seqs", "300",
    "--kv-cache-memory-bytes", "32M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "tests.e2e.slow_worker.SlowSteps",
    "--enable-auto-tool-choice",
    "--tool-call-parser", "step3",
    "--enable-scale-out",
]

[engine.launch.env]
OMP_NUM_THREADS = "1"
PYTHONPATH = "{root}"
ROUNDHOUSE_TEST_SLOW_STEPS = "{slow_steps}"
VLLM_SERVER_DEV_MODE = "1"  # for /reset_prefix_cache
"""

ORDER = {"test_continuations.py": 0, "test_restarts.py": 1, "test_switch.py": 3}
"""The first of these kill engines, which start again beside each other; the last one replaces an engine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.get(item.path.name, 2))


@pytest.fixture(scope="session")
def slow_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists, the steps of the replicas are slow."""
    return tmp_path_factory.mktemp("steps") / "slow"


@pytest.fixture(scope="session")
def events() -> dict[str, Events]:
    """Of the replicas."""
    return {name: Events(free_port(), free_port()) for name in ("one", "two")}


@pytest.fixture(scope="session")
def tree(
    tmp_path_factory: pytest.TempPathFactory, slow_steps: Path, events: dict[str, Events]
) -> Iterator[VllmProcessTree]:
    folder = tmp_path_factory.mktemp("tree")
    ports = {name: free_port() for name in ("llama-chat", "llama-code", "mistral")}
    text = CONFIGURATION.read_text()
    for old, port in zip((8001, 8002, 8003), ports.values(), strict=True):
        assert f":{old}" in text
        text = text.replace(f":{old}", f":{port}")
    assert 'name = "mistral"\naliases' in text
    text = text.replace('name = "mistral"\naliases', 'name = "mistral"\nwake = "15m"\naliases') + TABLES
    paths = {"models": os.environ.get("ROUNDHOUSE_MODELS", ""), "root": ROOT, "slow_steps": slow_steps}
    for name, at in events.items():
        ports[name] = free_port()
        text += REPLICA.format(name=name, port=ports[name], **at._asdict(), **paths)
    with running_tree(folder, text, ports) as tree:
        yield tree


@pytest.fixture(scope="module")
def replicas(tree: VllmProcessTree) -> VllmProcessTree:
    """Two engines of one model, without drafts, whose parser of tool calls holds the arguments back."""
    return tree.up("one", "two")
