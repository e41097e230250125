"""A real vLLM server with two data-parallel ranks, on the CPU: each is a replica of the router."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from router.core.routing.prefix_cache.kv_blocks import KvBlocks
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import RouterServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

START_TIMEOUT = 900.0  # seconds
EVENTS = 19_990
"""Of rank 0; rank 1 has the next port. Below those that other tests take."""
TEXT = "The sea was calm, and the lamp of the harbour was lit. " * 60


class Server:
    def __init__(self, url: str, router_text: str) -> None:
        self.url = url
        self.router_text = router_text

    def by_rank(self, name: str) -> list[float]:
        page = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.findall(rf'^vllm:{name}{{.*?engine="(\d)".*}} (\S+)$', page, re.MULTILINE)
        assert [rank for rank, _ in found] == ["0", "1"]
        return [float(value) for _, value in found]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    argv = [os.environ["ROUNDHOUSE_VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", f"{os.environ['ROUNDHOUSE_MODELS']}/llama", "--served-model-name", "tiny"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--data-parallel-size", "2"]
    argv += ["--enforce-eager", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "16M", "--max-model-len", "4096"]
    argv += ["--worker-extension-cls", "engines.tiny.worker_extension.SampleAsAsked"]
    argv += ["--kv-events-config", f'{{"enable_kv_cache_events": true, "endpoint": "tcp://*:{EVENTS}"}}']
    env = {
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    log = tmp_path_factory.mktemp("ranks") / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=output, stderr=output)
    try:
        wait_until_up(process, f"http://127.0.0.1:{port}", log)
        text = f"""
[router]
explore = 0
drain = "0s"

[cache]
url = "REDIS"

[[model]]
name = "tiny"
revision = "llama"

[[engine]]
name = "tiny"
model = "tiny"
url = "http://127.0.0.1:{port}"
data_parallel = 2
kv_events = "tcp://127.0.0.1:{EVENTS}"
"""
        yield Server(f"http://127.0.0.1:{port}", text)
    finally:
        process.terminate()
        process.wait(60)


def wait_until_up(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(1)
    pytest.fail(f"vLLM did not start:\n{log.read_text()[-3000:]}")


async def test_prompts_stay_with_the_rank_that_holds_them_and_its_events_are_heard(
    server: Server, redis_server: RedisServer
) -> None:
    async with RouterServer(server.router_text.replace("REDIS", redis_server.url)) as router:
        engines = router.application._runtime.catalog.engines
        await eventually(lambda: all(engine.gauges.kv_cache_tokens for engine in engines.values()))
        assert len({engine.gauges.kv_cache_tokens for engine in engines.values()}) == 1
        before = server.by_rank("prefix_cache_hits_total")
        used: dict[str, set[str]] = {}
        for turn in range(3):
            for name in ("One", "Two", "Three", "Four"):
                messages = [{"role": "user", "content": f"{name}. {TEXT}"}]
                body = {"model": "tiny", "messages": messages, "max_tokens": 4, "stream": True, "seed": turn}
                answer = await router.post("/v1/chat/completions", body)
                assert answer.status_code == 200, answer.text
                used.setdefault(name, set()).add(answer.headers["x-engine"])
        assert all(len(ranks) == 1 for ranks in used.values()), used
        assert {rank for ranks in used.values() for rank in ranks} == {"tiny.1", "tiny.2"}
        after = server.by_rank("prefix_cache_hits_total")
        assert all(now - then > 500 for now, then in zip(after, before, strict=True))
        # Each rank publishes its own events, which name the blocks of the prompts that it got.
        for engine in engines.values():
            blocks = router.application._process_state.prefills.of(engine.id).blocks
            assert isinstance(blocks, KvBlocks)
            await eventually(lambda blocks=blocks: blocks.learned > 0)  # type: ignore[misc]  # bound at once


async def test_vllm_refuses_a_rank_that_it_does_not_have(server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    async with httpx.AsyncClient(base_url=server.url, headers={"x-data-parallel-rank": "2"}, timeout=60) as http:
        refused = await http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            400, "data_parallel_rank 2 is out of range [0, 2)."
        )  # fmt: skip
        stream = await http.post("/v1/chat/completions", json={**body, "stream": True})
        assert (stream.status_code, "out of range" in stream.text) == (200, True)
