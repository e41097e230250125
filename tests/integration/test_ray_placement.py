"""`placement = "ray"`: an engine on a node of a Ray cluster, and on another one when its node has died."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.ports import free_port
from tests.support.ray_nodes import START_TIMEOUT, RayNodes
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")

CONFIG = """
[router]
port = {port}
state = "state"
[[model]]
name = "llama"
[[engine]]
name = "llama-any"
model = "llama"
[engine.launch]
target = "target"
placement = "ray"
"""


class Up:
    """A running `roundhouse up` with a simulated engine on the cluster."""

    def __init__(self, folder: Path, ray_address: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._output = folder / "up.log"
        self._engine_log = folder / "state" / "logs" / "llama-any.log"
        (folder / "roundhouse.toml").write_text(CONFIG.format(port=port))
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "router", "up", "--engines", "simulator"],
                cwd=folder, stdout=output, stderr=output, env={**os.environ, "RAY_ADDRESS": ray_address},
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    async def wait_for_output(self, text: str) -> None:
        def has_it() -> bool:
            assert self.process.poll() is None, f"{self.output}\n{self.engine_log}"
            return text in self.output

        await eventually(has_it, timeout=START_TIMEOUT)

    @property
    def engine_log(self) -> str:
        return self._engine_log.read_text() if self._engine_log.exists() else ""

    async def served_at(self) -> str:
        """The address that the engine has printed. The driver passes its output on, some time after it is ready."""
        prefix = "simulator ready at "

        def lines() -> list[str]:
            return [line for line in self.engine_log.splitlines() if line.startswith(prefix)]

        (line,) = await eventually(lines)
        return str(line).removeprefix(prefix)

    async def answer(self, prompt: str) -> httpx.Response:
        body = {"model": "llama", "messages": [{"role": "user", "content": prompt}]}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            return await client.post(f"{self.url}/v1/chat/completions", json=body)


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[RayNodes]:
    cluster = RayNodes()
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.close()


async def test_an_engine_whose_node_dies_serves_on_another_one(nodes: RayNodes, tmp_path: Path) -> None:
    await nodes.add("first")
    up = Up(tmp_path, nodes.address)
    try:
        await up.wait_for_output("stop: Ctrl-C")
        first = await up.served_at()
        assert (await up.answer("The sea?")).headers["x-engine"] == "llama-any"
        assert "running on the Ray node" in up.engine_log
        await nodes.add("second")
        nodes.kill("first")
        await up.wait_for_output("llama-any is ready again")
        second = await up.served_at()
        assert second != first
        assert f"llama-any is announced at {second}" in up.output

        async def is_answered() -> bool:
            return (await up.answer("The moon?")).status_code == 200

        await eventually(is_answered)  # once the router has read the announcement
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(timeout=60) == 0
        async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"{second}/health")
    finally:
        up.process.kill()
        up.process.wait()
