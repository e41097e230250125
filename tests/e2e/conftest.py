"""The complete process tree as a user starts it, with real vLLM engines on this machine's CPU: `make test-vllm`."""

from collections.abc import Iterator

import pytest

from tests.e2e.vllm_process_tree import CONFIGURATION, VllmProcessTree, running_tree
from tests.support.ports import free_port


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
