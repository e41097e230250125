"""`roundhouse engines up`: engines on their own, which routers find through Redis; more is in tests/world."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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

    async def seen() -> Any:
        """The row; the command waits for a second only until a router has published what it sees."""
        (row,) = (await run_cli("engines", "list", "-c", str(launcher.config), "--json")).json_lines()
        return row if row["seen_by"] else None

    row = await eventually(seen)
    assert (row["name"], row["up"]) == ("extra", True)
    # It is the router that knows what engines hold.
    assert row["seen_by"] == f"{socket.gethostname()}:{os.getpid()}"
    assert 0 < row["prefix_tokens"] < row["prefix_capacity_tokens"]
    assert row["prefix_entries"] > 0
    table = await run_cli("engines", "list", "-c", str(launcher.config))
    assert f"as the router process {row['seen_by']} sees it" in table.stderr
    assert f" {row['prefix_tokens']:,}/{row['prefix_capacity_tokens']:,} " in table.stdout
    assert launcher.stop() == 0
    await eventually(lambda: has_extra(False))
    assert (await router.chat("The moon?")).headers["x-engine"] == "llama-code"


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
