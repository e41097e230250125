"""`roundhouse engines up`: engines on their own, which routers find through Redis."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.core.cache.redis_keys import ANNOUNCEMENTS_KEY, prompts_key
from tests.support.cli_helpers import run_cli
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Launcher:
    """A running `roundhouse engines up` with the engine `extra`."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.config = folder / "engines.toml"
        self.port = free_port()
        engines = {"extra": ("llama", "chat", f"http://127.0.0.1:{self.port}")}
        text = router_config(redis_url, engines, router=f'state = "{folder}/state"\ndrain = "0s"')
        self.config.write_text(f'{text}\n[engine.launch]\ntarget = "{LLAMA}"\n')
        self._log = folder / "engines.log"
        argv = [sys.executable, "-m", "router", "engines", "up", "-c", str(self.config), "--engines", "simulator"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@pytest.fixture
def launcher(tmp_path: Path, redis_server: RedisServer) -> Iterator[Launcher]:
    started = Launcher(tmp_path, redis_server.url)
    yield started
    started.stop()


async def test_a_running_router_uses_the_engines_until_they_are_stopped(
    launcher: Launcher, redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    only_code = {name: engine for name, engine in engines.as_config().items() if name == "llama-code"}
    router = await make_router(router_config(redis_server.url, only_code))
    await eventually(lambda: "announced to the routers in Redis" in launcher.output, timeout=60)

    async def has_extra(expected: bool) -> bool:
        return ("extra" in (await router.http.get("/healthz")).json()["engines"]) is expected

    await eventually(lambda: has_extra(True))
    assert (await router.chat("The sea?")).headers["x-engine"] == "extra"
    listed = await run_cli("engines", "list", "-c", str(launcher.config), "--json")
    assert [(row["name"], row["up"]) for row in listed.json_lines()] == [("extra", True)]
    assert launcher.stop() == 0
    await eventually(lambda: has_extra(False))
    assert (await router.chat("The moon?")).headers["x-engine"] == "llama-code"


async def test_an_engine_is_warmed_up_with_recent_requests_before_it_is_announced(
    tmp_path: Path, redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    only_code = {name: engine for name, engine in engines.as_config().items() if name == "llama-code"}
    router = await make_router(router_config(redis_server.url, only_code))
    await router.chat("The sea?")
    await eventually(lambda: redis.exists(prompts_key("llama")))
    launcher = Launcher(tmp_path, redis_server.url)
    try:
        await eventually(lambda: "announced to the routers in Redis" in launcher.output, timeout=60)
        page = (await router.http.get(f"http://127.0.0.1:{launcher.port}/metrics")).text
        (count,) = re.findall(r"^vllm:request_success_total\{.*length.*\} (\S+)$", page, re.MULTILINE)
        assert float(count) == 1
    finally:
        launcher.stop()


async def test_an_embedded_redis_and_unknown_names_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.toml"
    config.write_text(router_config("embedded", {"a": ("llama", "any", "http://127.0.0.1:1")}))
    refused = await run_cli("engines", "up", "-c", str(config))
    assert "need a Redis that the routers share" in refused.stderr
    assert refused.code == 1
    config.write_text(router_config("redis://127.0.0.1:1", {"a": ("llama", "any", "http://127.0.0.1:1")}))
    refused = await run_cli("engines", "up", "b", "-c", str(config))
    assert "no launch for engine b; engines with one: none" in refused.stderr
    assert refused.code == 2


async def test_a_launcher_that_was_killed_is_followed_at_once_by_the_next_one(
    tmp_path: Path, redis_server: RedisServer, redis: Any
) -> None:
    ready = "announced to the routers in Redis"
    first = Launcher(tmp_path, redis_server.url)
    try:
        await eventually(lambda: ready in first.output, timeout=60)
    finally:
        first.process.kill()
        first.process.wait()
    second = Launcher(tmp_path, redis_server.url)
    try:
        await eventually(lambda: ready in second.output, timeout=60)
        assert "another launcher" not in second.output
        assert str(second.port) in await redis.hget(ANNOUNCEMENTS_KEY, "engine/extra")
    finally:
        assert second.stop() == 0


async def test_it_says_what_another_launcher_announces_already(
    launcher: Launcher, tmp_path: Path, redis_server: RedisServer
) -> None:
    await eventually(lambda: "announced to the routers in Redis" in launcher.output, timeout=60)
    second_folder = tmp_path / "second"
    second_folder.mkdir()
    second = Launcher(second_folder, redis_server.url)
    try:
        await eventually(lambda: "The engines are ready" in second.output, timeout=60)
        assert "not all are announced to the routers: another launcher announces extra" in second.output
    finally:
        second.stop()
