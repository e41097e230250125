"""The README's section about own engines, as it stands, in an empty folder."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.first_steps import engine_of
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import http_client
from tests.support.router_server import chat_body
from tests.support.scripted_engine import served
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LLAMA: Final = "meta-llama/Llama-3.1-8B-Instruct"
KEY: Final = "the-key-of-the-engine"
SECTION: Final = "In front of your own engines"


def commands() -> list[str]:
    """The lines of the section's console blocks, in order."""
    section = (ROOT / "README.md").read_text().partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def start(arguments: list[str], folder: Path, env: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(arguments, cwd=folder, env=env, stdout=output, stderr=output)


async def serves(arguments: list[str], folder: Path, env: dict[str, str]) -> None:
    """Runs a command that serves until a request was a miss and the same one a hit."""
    log = folder / "serve.log"
    process = start(arguments, folder, env, log)
    try:
        await eventually(lambda: "ready: " in log.read_text() or process.poll() is not None)
        async with http_client(f"http://127.0.0.1:{env['ROUNDHOUSE_ROUTER_PORT']}") as http:
            body = {**chat_body(f"With {len(arguments)} arguments?"), "model": LLAMA}
            answers = [await http.post("/v1/chat/completions", json=body) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"], log.read_text()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
    assert KEY not in log.read_text()


async def test_its_commands_lead_to_a_hit_before_an_engine_that_wants_a_key(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ROUNDHOUSE_ROUTER_DRAIN": "0"}
    env["ROUNDHOUSE_CACHE_TIMEOUT"] = "2500ms"  # for the lookup; Redis may be slow on a busy machine
    # The port of the README may be in use here.
    env["ROUNDHOUSE_ROUTER_PORT"] = str(free_port())
    ran = []
    async with served(engine_of(LLAMA, api_key=KEY)) as url:
        for line in commands():
            here = line.replace("http://127.0.0.1:8000", url).replace("redis://127.0.0.1:6379", redis_server.url)
            words = shlex.split(here, comments=True)
            ran.append(" ".join(words[:2]))
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                env[name] = value
                continue
            assert words[0] == "roundhouse"
            arguments = [sys.executable, "-m", "router", *words[1:]]
            if words[1] == "serve":
                await serves(arguments, tmp_path, env)
                continue
            process = await asyncio.create_subprocess_exec(*arguments, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL)
            assert await process.wait() == 0
    assert ran == [
        f"export VLLM_API_KEY={KEY}", "roundhouse serve", "roundhouse init", "roundhouse check", "roundhouse serve"
    ]  # fmt: skip
    assert KEY not in (tmp_path / "roundhouse.toml").read_text()
