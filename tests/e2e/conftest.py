"""The whole tree as a user starts it, with real vLLM engines on this machine's CPU: `make test-vllm`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from vllm_tree import CONFIGURATION, PROJECT, Tree, free_port, ready


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("tree")
    ports = {name: free_port() for name in ("llama-chat", "llama-code", "mistral")}
    text = CONFIGURATION.read_text()
    for old, port in zip((8001, 8002, 8003), ports.values(), strict=True):
        assert f":{old}" in text
        text = text.replace(f":{old}", f":{port}")
    router = free_port()
    config = folder / "roundhouse.toml"
    config.write_text(f'[router]\nport = {router}\nstate = "{folder}/state"\n\n{text}')
    argv = [sys.executable, "-m", "router", "up", "--config", str(config), "--engines", "vllm"]
    argv += ["--vllm-python", os.environ["ROUNDHOUSE_VLLM_PYTHON"]]
    log = folder / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=PROJECT, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield ready(process, log, router, ports, folder)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
