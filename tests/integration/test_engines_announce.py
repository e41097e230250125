"""`roundhouse engines announce`: engines that something else runs, which routers find through Redis."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


class AnnouncingProcess:
    """A running `roundhouse engines announce` of the engine `pod-7`, which serves at `url`."""

    def __init__(self, folder: Path, redis_url: str, url: str) -> None:
        config = folder / "pod.toml"
        # As on Kubernetes: the name and the address are the pod's.
        config.write_text(router_config(redis_url, {"${POD_NAME}": ("llama", "chat", "${POD_URL}")}))
        argv = [sys.executable, "-m", "router", "engines", "announce", "-c", str(config)]
        environment = {**os.environ, "POD_NAME": "pod-7", "POD_URL": url}
        self._log = folder / "announce.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@pytest.fixture
def announcing(tmp_path: Path, redis_server: RedisServer, engines: EngineSet) -> Iterator[AnnouncingProcess]:
    started = AnnouncingProcess(tmp_path, redis_server.url, engines.as_config()["llama-chat"][2])
    yield started
    started.stop()


async def test_a_router_uses_an_announced_engine_until_its_announcer_is_stopped(
    announcing: AnnouncingProcess, redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    only_code = {name: engine for name, engine in engines.as_config().items() if name == "llama-code"}
    router = await make_router(router_config(redis_server.url, only_code))

    async def has_pod(expected: bool) -> bool:
        return ("pod-7" in (await router.http.get("/healthz")).json()["engines"]) is expected

    await eventually(lambda: has_pod(True), timeout=60)
    assert (await router.chat("The sea?")).headers["x-engine"] == "pod-7"
    assert announcing.stop() == 0
    await eventually(lambda: has_pod(False))
    assert (await router.chat("The moon?")).headers["x-engine"] == "llama-code"
    assert "pod-7 is announced at http://" in announcing.output


async def test_an_engine_with_an_api_key_is_not_announced(tmp_path: Path, redis_server: RedisServer) -> None:
    config = tmp_path / "pod.toml"
    text = router_config(redis_server.url, {"pod-7": ("llama", "chat", "http://127.0.0.1:1")})
    config.write_text(text.replace('name = "pod-7"', 'name = "pod-7"\napi_key = "secret"'))
    done = await run_cli("engines", "announce", "-c", str(config))
    assert done.code == 1
    assert "pod-7: an engine is announced with one url, and without api_key and headers" in done.stderr
    assert "secret" not in done.stderr
